"""Log of vLLM's V1 engine: a row a schedule, as the scheduler is right behind it, and a row a request."""

from __future__ import annotations

import json
import zlib
from array import array
from typing import Any, ClassVar

from options import OptionsV1
from simulated import Clock
from traces import Row
from vllm.v1.request import Request

TABLES_UP_TO, TABLES_EVERY = 1500, 16
"""Block tables are logged in the first steps, and in every so manieth after."""

QUEUES = ("waiting", "skipped_waiting", "kv_holding_waiting")
"""Where a scheduler holds waiting requests; a release has the first, and one of the others or none."""


class NotedRequest(Request):
    """A request of vLLM that notes each preemption: every release counts them in this attribute.

    Attributes:
        preempted: ids of the requests that were preempted since it was last cleared.
    """

    preempted: ClassVar[list[str]] = []

    @property
    def num_preemptions(self) -> int:
        return self._num_preemptions

    @num_preemptions.setter
    def num_preemptions(self, number: int) -> None:
        self._num_preemptions = number
        if number:
            self.preempted.append(self.request_id)


class Log:
    """What is noted of a run.

    Attributes:
        steps: the rows of the table of steps.
        requests: those of the table of requests, by the requests' ids.
    """

    def __init__(self, options: OptionsV1, clock: Clock) -> None:
        self.options, self.clock = options, clock
        self.steps: list[dict[str, Any]] = []
        self.requests: dict[str, dict[str, Any]] = {}
        self.were_running: set[str] = set()
        NotedRequest.preempted.clear()

    def note_request(self, name: str, row: Row, output_tokens: int, *, rejected: bool) -> None:
        """Add a request that arrives."""
        self.requests[name] = {
            "request_id": name,
            "arrival_s": row.arrival_s,
            "prompt_tokens": row.prompt_tokens,
            "output_target": output_tokens,
            "output_tokens": 0,
            "n": 1,
            "first_scheduled_s": None,
            "first_token_s": None,
            "finish_s": None,
            "recomputes": 0,
            "swaps": 0,
            "cached_tokens": None,
            "ext_tokens": 0,
            "status": "rejected" if rejected else "unfinished",
        }

    def note_schedule(
        self, scheduler: Any, scheduled: Any, context: int, start: float, step_s: float
    ) -> None:
        """Add a row: what was scheduled, when it runs, and what it did to the requests and the blocks."""
        batch: dict[str, int] = scheduled.num_scheduled_tokens
        requests = scheduler.requests
        computed = {name: requests[name].num_computed_tokens - tokens for name, tokens in batch.items()}
        # What a request that enters the batch has computed already, it found in the cache.
        found = {name: tokens for name, tokens in computed.items() if name not in self.were_running}
        self.were_running = {request.request_id for request in scheduler.running}
        preempted = list(NotedRequest.preempted)
        NotedRequest.preempted.clear()
        for name, tokens in found.items():
            if self.requests[name]["first_scheduled_s"] is None:
                self.requests[name].update(first_scheduled_s=self.clock.now, cached_tokens=tokens)
        for name in preempted:
            self.requests[name]["recomputes"] += 1
        cache = scheduler.kv_cache_manager
        nulls = [
            [block.is_null for table in group.req_to_blocks.values() for block in table]
            for group in cache.coordinator.single_type_managers
        ]
        row = {
            "step": len(self.steps),
            "clock": self.clock.now,
            "num_running": len(scheduler.running),
            "num_running_seqs": len(scheduler.running),
            "num_waiting": sum(len(getattr(scheduler, queue, ())) for queue in QUEUES),
            "num_swapped": 0,
            "free_gpu_blocks": cache.block_pool.get_num_free_blocks(),
            "free_cpu_blocks": 0,
            "num_batched_tokens": scheduled.total_num_scheduled_tokens,
            "sum_context_tokens": context,
            "step_s": step_s,
            "blocks_swapped_in": 0,
            "blocks_swapped_out": 0,
            "blocks_copied": 0,
            "num_preempted": len(preempted),
            "exec_start": start,
            "exec_end": start + step_s,
            "num_prefill_tokens": sum(
                tokens for name, tokens in batch.items() if computed[name] < requests[name].num_prompt_tokens
            ),
            "num_waiting_remote": 0,
            "blocks_by_group": [group.count(False) for group in nulls],
            "nulls_by_group": [group.count(True) for group in nulls],
            "cached_hashes": len(cache.block_pool.cached_block_hash_to_block),
            "deferred_free": 0,
            "prefix_hit_tokens": sum(found.values()),
            "ext_hit_tokens": 0,
            "preempted": " ".join(preempted),
            "scheduled_crc": zlib.crc32(json.dumps(batch, separators=(",", ":")).encode()),
            "tables_crc": self._tables(cache, batch),
        }
        if self.options.speculative_tokens:
            row["spec_tokens"] = sum(map(len, scheduled.scheduled_spec_decode_tokens.values()))
        self.steps.append(row)

    def _tables(self, cache: Any, batch: dict[str, int]) -> int | None:
        """Return the checksum of the batch's block tables; None in a step in which they are not logged."""
        step = len(self.steps)
        if step >= TABLES_UP_TO and step % TABLES_EVERY:
            return None
        blocks = [block for name in batch for group in cache.get_block_ids(name) for block in group]
        return zlib.crc32(array("i", blocks).tobytes())

    def put_nowait(self, message: tuple[int, Any]) -> None:
        """Take the outputs of a step: the log is the queue into which the engine puts them."""
        for output in message[1].outputs:
            request = self.requests[output.request_id]
            request["output_tokens"] += len(output.new_token_ids)
            if output.new_token_ids and request["first_token_s"] is None:
                request["first_token_s"] = self.clock.now
            if output.finish_reason is not None:
                request.update(finish_s=self.clock.now, status="finished")

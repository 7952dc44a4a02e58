"""SGLang details: what an SGLang log records of an iteration beyond pagesim's steps table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pagesim.kvcache.radix import HostRadixManager, StateRadixManager, WindowedRadixManager
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.observer import FastForward, Observer
from pagesim.scheduling.request import EngineRequest
from pagesim.scheduling.sglang import Sglang
from pagesim.sim.clock import TICKS_PER_SECOND

if TYPE_CHECKING:  # pandas is slow to import
    import pandas as pd


class SglangDetails(Observer):
    """Records what runs in every iteration and what the radix tree holds."""

    scheduler: Sglang

    def __init__(self) -> None:
        self._steps: list[dict[str, Any]] = []
        self._retracted: list[int] = []
        self._preempted: list[int] = []
        self._turned_away: list[int] = []
        self._copied = (0, 0)  # tokens written to and loaded from the host
        self._loaded: dict[int, int] = {}  # tokens loaded for each request's first prefill, by trace row
        self._outputs: dict[int, int] = {}  # output tokens by trace row, with speculative decoding

    def begun(self, scheduler: Scheduler) -> None:
        if isinstance(scheduler, Sglang):
            self.scheduler = scheduler

    def departed(self, batch: Batch, now: int) -> None:
        made_way = self.scheduler.preempted
        self._preempted += [request.row for request in made_way]
        self._retracted += [request.row for request in batch.recomputed if request not in made_way]
        self._turned_away += [request.row for request in batch.ignored]
        if not batch.tokens:  # a turn without a batch has no row in the log
            self._retracted, self._preempted = [], []

    def finished(self, request: EngineRequest, now: int) -> None:
        if self.scheduler.drafts is not None:
            self._outputs[request.row] = request.length - request.prompt

    def planned(self, batch: Batch, now: int, start: int, ticks: int) -> None:
        scheduler = self.scheduler
        for request in batch.prompts:
            self._loaded.setdefault(request.row, request.loaded)
        length = scheduler.memory.length
        prompts = [[request.row, length(request) - tokens, tokens] for request, tokens in batch.chunks]
        decodes = "mixed" if prompts else "decode"
        chunked = scheduler.chunked_req
        # Requests running next to the prompts decode, or sit out this iteration.
        beside = batch.decoding or len(scheduler.running_batch.reqs)
        self._steps.append(
            {
                "mode": decodes if batch.decoding else "prefill",
                "is_prefill": bool(prompts),
                "num_running": len(prompts) + beside,
                "num_decode": batch.decoding,
                **self._memory(0),
                "evicted_tokens": scheduler.pool.evicted_tokens,
                **self._states(scheduler.pool.evicted_states),
                **self._host(ticks - (0 if scheduler.hicache is None else scheduler.hicache.waited)),
                "num_prefill_tokens": sum([tokens for _, _, tokens in prompts]),
                "sum_context_tokens": batch.context_tokens,
                "num_retracted": len(self._retracted),
                "num_aborted": len(batch.unschedulable),
                "new_token_ratio": scheduler.new_token_ratio.current,
                "batch_is_full": scheduler.running_batch.batch_is_full,
                "chunked": "" if chunked is None else str(chunked.row),
                "prefill": str(prompts),
                "retracted": str(self._retracted),
                "preempted": str(self._preempted),
                "turned_away": str(self._turned_away),
                "accepted": str([share.outputs for share in batch.shares or () if share.drafts]),
            }
        )
        self._retracted, self._preempted, self._turned_away = [], [], []

    def fast_forwarded(self, run: FastForward) -> None:
        scheduler = self.scheduler
        for step, ratio in enumerate(scheduler.new_token_ratio.over(run.steps)):
            self._steps.append(
                {
                    "mode": "decode",
                    "is_prefill": False,
                    "num_running": run.sequences,
                    "num_decode": run.sequences,
                    **self._memory(step + 1),
                    "evicted_tokens": 0,
                    **self._states(0),
                    **self._host(run.first + step * run.increment),
                    "num_prefill_tokens": 0,
                    "sum_context_tokens": run.context + step * run.sequences,
                    "num_retracted": 0,
                    "num_aborted": 0,
                    "new_token_ratio": ratio,
                    "batch_is_full": scheduler.running_batch.batch_is_full,
                    "chunked": "",
                    "prefill": "[]",
                    **dict.fromkeys(("retracted", "preempted", "turned_away"), "[]"),
                }
            )

    def advanced(self, run: FastForward) -> None:
        tree = self.scheduler.pool.tree_cache
        if tree is not None:
            # Earlier prompts are cached while the first of these steps runs; without overlap, before it.
            for step in self._steps[len(self._steps) - run.steps + self.scheduler.overlaps :]:
                step["protected_tokens"] = tree.tree.protected

    def add_to_requests(self, requests: pd.DataFrame) -> pd.DataFrame:
        """Return pagesim's requests table with the tokens of each request's first load and its output."""
        known = {"output_tokens": self._outputs, "loaded_tokens": self._loaded}
        requests = requests.assign(loaded_tokens=requests.get("loaded_tokens", 0))  # of another rank
        return requests.assign(
            **{
                name: [own.get(row, cell) for row, cell in enumerate(requests[name])]
                for name, own in known.items()
            }
        )

    def add_to(self, steps: pd.DataFrame, like: pd.DataFrame) -> pd.DataFrame:
        """Return pagesim's steps table with those of the log's columns that were recorded."""
        return steps.assign(
            **{
                name: [step[name] for step in self._steps]
                for name in like.columns
                if self._steps and name in self._steps[0]
            }
        )

    def _memory(self, steps: int) -> dict[str, int]:
        """Return the free, evictable and protected tokens after ``steps`` further decode steps."""
        memory, tree = self.scheduler.memory, self.scheduler.pool.tree_cache
        available = memory.free_blocks - memory.cached_blocks - memory.blocks_needed(steps)
        found = {
            "free_tokens": available * memory.block_size,
            "evictable_tokens": 0 if tree is None else tree.tree.evictable,
            "protected_tokens": 0 if tree is None else tree.tree.protected,
        }
        if isinstance(memory, WindowedRadixManager):
            available = memory.available_window_blocks - memory.blocks_needed(steps)
            found |= {
                "free_swa_tokens": available * memory.block_size,
                "evictable_swa_tokens": memory.tree.window_evictable,
                "protected_swa_tokens": memory.tree.window_protected,
            }
        return found

    def _states(self, evicted: int) -> dict[str, int]:
        """Return the free, evictable and protected states of the state pool, and the evicted ones."""
        memory = self.scheduler.memory
        if not isinstance(memory, StateRadixManager):
            return {}
        return {
            "free_states": memory.free_states,
            "evictable_states": memory.tree.evictable_states,
            "protected_states": memory.tree.protected_states,
            "evicted_states": evicted,
        }

    def _host(self, ticks: int) -> dict[str, float]:
        """Return the host's free tokens, and the tokens copied to and from it since the last iteration.

        Args:
            ticks: duration of the iteration, without the time it waits for loads.
        """
        memory, before = self.scheduler.memory, self._copied
        if not isinstance(memory, HostRadixManager):
            return {}
        written, loaded = self._copied = memory.tree.written, memory.loaded
        return {
            "free_host_tokens": memory.tree.free_host,
            "written_tokens": written - before[0],
            "loaded_tokens": loaded - before[1],
            "step_s": ticks / TICKS_PER_SECOND,
        }


def is_of_sglang(steps: pd.DataFrame) -> bool:
    """Return whether a log's steps are SGLang's."""
    return "new_token_ratio" in steps


def as_text(steps: pd.DataFrame) -> pd.DataFrame:
    """Return a log's steps with lists and optional requests converted to text."""

    def listed(cell: Any) -> Any:
        return [listed(each) for each in cell] if hasattr(cell, "__len__") else int(cell)

    names = ["prefill", "retracted", "preempted", "turned_away", "accepted", "all_tokens"]
    lists = steps.columns.intersection(names)
    texts = {name: [str(listed(cell)) for cell in steps[name]] for name in lists}
    chunked = [
        "" if cell else str(int(number))
        for cell, number in zip(steps["chunked"].isna(), steps["chunked"].fillna(0), strict=True)
    ]
    return steps.assign(**texts, chunked=chunked)

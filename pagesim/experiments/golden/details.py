"""Details: what a log of current vLLM releases records of an iteration beyond pagesim's steps table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, cast
from zlib import crc32

import numpy as np
import numpy.typing as npt

from pagesim.kvcache import (
    BlockManager,
    HybridManager,
    NumberedPrefixManager,
    PagedManager,
    PrefixManager,
)
from pagesim.kvcache.hybrid.blocks import NULL
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.observer import FastForward, Observer
from pagesim.scheduling.offload.jobs import Transfers
from pagesim.scheduling.offload.offloading import offloading_of
from pagesim.scheduling.request import EngineRequest
from pagesim.sim.clock import TICKS_PER_SECOND

if TYPE_CHECKING:  # pandas is slow to import
    import pandas as pd

_ENCODE = json.JSONEncoder(separators=(",", ":")).encode

ABSENT = {"num_waiting_remote": 0, "deferred_free": 0, "ext_hit_tokens": 0}
"""Values of the columns about transfers between GPU blocks and other memory, if there are no transfers."""


class Details(Observer):
    """Records the details of every iteration; those that need the memory's state, only of planned ones.

    Args:
        names: the log's request names, ``[N]``, by row of the engine's trace.
    """

    scheduler: Scheduler

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._computed: dict[EngineRequest, int] = {}  # computed tokens after the last iteration
        self._preempted: list[str] = []
        self._resumed: set[EngineRequest] = set()  # requests that were ever preempted
        self._steps: list[dict[str, Any]] = []
        self._verified = self._outputs = 0  # draft tokens and output tokens up to the last iteration
        self._drafted: dict[int, int] = {}  # draft tokens by trace row
        self._accepted: dict[int, int] = {}

    def begun(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler

    def departed(self, batch: Batch, now: int) -> None:
        self._preempted += [self._names[request.row] for request in batch.recomputed]
        self._resumed.update(batch.recomputed)
        for request in batch.recomputed:
            self._computed.pop(request, None)

    def planned(self, batch: Batch, now: int, start: int, ticks: int) -> None:
        memory = self.scheduler.memory
        scheduled: dict[EngineRequest, int] = {}
        prefill = 0
        hits: dict[EngineRequest, int] = {}
        for request in batch.prompts:
            self._computed[request] = request.cached
            if request.cached and not request.loaded:
                hits[request] = request.cached
        for share in batch.shares or ():
            scheduled[share.request] = share.tokens
            prefill += share.tokens if share.computed < share.request.prompt else 0
            if share.outputs and share.drafts:
                row = share.request.row
                self._drafted[row] = self._drafted.get(row, 0) + share.drafts
                self._accepted[row] = self._accepted.get(row, 0) + share.accepted
        for request in self.scheduler.running.values() if batch.shares is None else ():
            length, before = memory.length(request), self._computed[request]
            self._computed[request] = length
            if length > before:
                scheduled[request] = length - before
                if before < request.prompt:
                    prefill += length - before
        self._steps.append(
            {
                **self._named(scheduled),
                "hits": self._hits(hits, batch.loading),
                "waited_s": batch.waited / TICKS_PER_SECOND,
                "spec_tokens": batch.drafts,
                "num_prefill_tokens": prefill,
                "prefix_hit_tokens": sum(hits.values()),
                "preempted": " ".join(self._preempted),
                **_by_group(self._held()),
                "cached_hashes": self._cached(),
                "tables_crc": self._tables_crc(scheduled),
                **self._offloaded(batch.transfers),
                **self._verified_before(batch),
            }
        )
        self._preempted = []

    def fast_forwarded(self, run: FastForward) -> None:
        memory, running = self.scheduler.memory, self.scheduler.running.values()
        decoding = [request for request in running if request.decodes]
        named = self._named(dict.fromkeys(decoding, 1))
        at_rest = self._held(at_rest=True)
        offloaded = self._offloaded(Transfers())
        lengths = np.array([memory.length(request) for request in decoding])
        for step in range(1, run.steps + 1):
            held = at_rest + _held_at(memory, lengths + step)
            self._steps.append(
                {
                    **named,
                    "hits": "",
                    "waited_s": 0.0,
                    "spec_tokens": 0,
                    "num_prefill_tokens": 0,
                    "prefix_hit_tokens": 0,
                    "preempted": "",
                    **_by_group(held),
                    **offloaded,
                }
            )
        for request in decoding:
            self._computed[request] += run.steps

    def add_to_requests(self, requests: pd.DataFrame) -> pd.DataFrame:
        """Return pagesim's requests table with each request's draft tokens and accepted draft tokens."""
        counts = {"drafted": self._drafted, "accepted": self._accepted}
        rows = range(len(requests))
        return requests.assign(**{name: [of.get(row, 0) for row in rows] for name, of in counts.items()})

    def add_to(self, steps: pd.DataFrame, like: pd.DataFrame) -> pd.DataFrame:
        """Return pagesim's steps table with these columns; unrecorded cells are copied from the log.

        Args:
            steps: pagesim's table, one row per iteration.
            like: the log's table.
        """
        import pandas as pd

        details = pd.DataFrame(self._steps, index=steps.index)
        whole = pd.concat([steps, details], axis=1)
        whole = whole.assign(**{name: whole.get(name, value) for name, value in ABSENT.items()})
        whole["exec_start"] = whole["start"]
        whole["exec_end"] = whole["start"] + whole["step_s"]
        whole["step_s"] -= whole["waited_s"]
        for name in ("cached_hashes", "tables_crc"):
            theirs = like[name].reindex(whole.index) if name in like else None
            if theirs is not None:
                ours = whole[name].astype("Int64")
                whole[name] = ours.where(ours.notna() & theirs.notna(), theirs.astype("Int64"))
        return whole

    def _named(self, scheduled: dict[EngineRequest, int]) -> dict[str, Any]:
        text = self._text(scheduled)
        return {"scheduled": text, "scheduled_crc": crc32(text.encode())}

    def _verified_before(self, batch: Batch) -> dict[str, Any]:
        """Return an iteration's draft tokens, and what was verified since the previous one was planned."""
        counts = self.scheduler.speculation
        if counts is None:
            return {}
        drafts = {share.request: share.drafts for share in batch.shares or () if share.drafts}
        found = {
            "drafts": self._text(drafts) if drafts else "",
            "accepted_before": counts.verified - self._verified,
            "output_before": counts.outputs - self._outputs,
        }
        self._verified, self._outputs = counts.verified, counts.outputs
        return found

    def _hits(self, found: dict[EngineRequest, int], loading: Sequence[EngineRequest]) -> str:
        loaded = {request: request.loaded for request in loading}
        found = dict(sorted(found.items(), key=lambda each: each[0] in self._resumed))  # resumed ones last
        return f"[{self._text(found)},{self._text(loaded)}]" if found or loaded else ""

    def _text(self, tokens: dict[EngineRequest, int]) -> str:
        named = {self._names[request.row]: each for request, each in tokens.items()}
        return _ENCODE(named)

    def _offloaded(self, transfers: Transfers | None) -> dict[str, int]:
        """Return what was transferred and what the tier holds; empty if there is no tier."""
        connector = offloading_of(self.scheduler)
        if connector is None or transfers is None:
            return {}
        store = connector.tiers()[0].store
        return {
            "num_waiting_remote": len(connector.loading),
            "deferred_free": self._deferred_free(),
            "ext_hit_tokens": sum([job.tracked.request.loaded for job in transfers.loads]),
            "cpu_used": store.used,
            "cpu_evictable": store.evictable,
            "blocks_loaded": sum([job.blocks for job in transfers.loads]),
            "blocks_stored": sum([job.blocks for job in transfers.stores]),
            "jobs_flushed": len(transfers.flushed),
        }

    def _held(self, *, at_rest: bool = False) -> npt.NDArray[np.int64]:
        """Return the blocks and null entries of running requests in each group, ``[G, 2]``.

        Args:
            at_rest: whether to count only requests that are not decoding.
        """
        memory = self.scheduler.memory
        sizes = [group.block_size for group in memory.groups]
        blocks, entries = [0] * len(sizes), [0] * len(sizes)
        fenced = self._fenced()
        for request in chain(self.scheduler.running.values(), *self.scheduler.held_without_running()):
            if request in fenced:
                continue
            if at_rest and request.decodes:
                continue
            if isinstance(memory, HybridManager):  # draft tokens occupy blocks beyond the request's length
                for group in range(len(sizes)):
                    table = memory.block_table(request, group=group)
                    nulls = table.count(NULL)
                    blocks[group] += len(table) - nulls
                    entries[group] += len(table)
            else:
                length = memory.length(request)
                for group, (_, of_group) in enumerate(memory.held_by_group(request)):
                    blocks[group] += of_group
                    entries[group] += -(-length // sizes[group])
        return np.array([blocks, np.subtract(entries, blocks)]).T

    def _fenced(self) -> set[EngineRequest]:
        """Return the finished requests whose blocks are still in use by a batch in flight."""
        connector = offloading_of(self.scheduler)
        return set() if connector is None else {request for _, request in connector.deferred}

    def _deferred_free(self) -> int:
        """Return how many blocks these requests hold, counting null entries after a table's first block."""
        memory, blocks = self.scheduler.memory, 0
        for request in self._fenced():
            for group in range(len(memory.groups)):
                table = cast(HybridManager, memory).block_table(request, group=group)
                leading = next((at for at, block in enumerate(table) if block != NULL), len(table))
                blocks += len(table) - leading
        return blocks

    def _cached(self) -> int | None:
        """Return the number of hashes that map to a block."""
        memory = self.scheduler.memory
        if not isinstance(memory, HybridManager | PrefixManager):
            return 0
        for request in self.scheduler.running.values():
            memory.cache_full_blocks(request)
        return memory.findable_blocks

    def _tables_crc(self, scheduled: dict[EngineRequest, int]) -> int | None:
        """Return the checksum of all scheduled requests' block tables; None if blocks have no numbers.

        vLLM's null block is block 0, and its free blocks are initially allocated in ascending order.
        """
        memory = self.scheduler.memory
        if not scheduled:
            return None
        tables: list[int] = []
        if isinstance(memory, HybridManager):
            for request in scheduled:
                for group in range(len(memory.groups)):
                    tables += memory.block_table(request, group=group)
        elif memory.names_blocks and isinstance(memory, PagedManager | NumberedPrefixManager):
            for request in scheduled:
                tables += memory.block_table(request)
        else:
            return None
        blocks = np.array(tables, "<i4")
        rising = isinstance(memory, HybridManager | NumberedPrefixManager)
        return crc32((blocks + 1 if rising else memory.num_blocks - blocks).tobytes())


def _held_at(memory: BlockManager, lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the blocks and null entries of decoding requests of these lengths in each group, ``[G, 2]``."""
    held = []
    for group in memory.groups:
        gone = sum([group.released(length - 1 - memory.steps_in_flight) for length in lengths.tolist()])
        held.append((int(np.sum(-(-lengths // group.block_size))) - gone, gone))
    return np.array(held)


def _by_group(held: npt.NDArray[np.int64]) -> dict[str, str]:
    return {"blocks_by_group": str(held[:, 0].tolist()), "nulls_by_group": str(held[:, 1].tolist())}

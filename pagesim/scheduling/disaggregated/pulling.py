"""vLLM v1 that only decodes: the KV of a prompt is pulled from a prefiller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pagesim.kvcache import KVCache
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.disaggregated.polls import Polls
from pagesim.scheduling.disaggregated.refusals import check_memory
from pagesim.scheduling.holding import HoldingV1
from pagesim.scheduling.request import EngineRequest
from pagesim.scheduling.vllm_v1_options import VllmV1Options

Pull = Callable[[EngineRequest, int, int], int]
"""Begins to pull a request's prompt: so many blocks, at an instant; returns when that is over, in ticks."""


def _at_once(request: EngineRequest, blocks: int, now: int) -> int:
    return now


class PullingV1(HoldingV1):
    """As `HoldingV1`, for requests whose prompts a prefiller has computed.

    A request that is admitted takes the blocks of its whole prompt at once and *lands*: it holds them, does
    not run, does not count as running and cannot be preempted, until the worker has reported that what this
    replica had not cached was pulled. Then it runs, before any request that has not landed, and computes the
    last token of its prompt again, for what comes next. A request that is preempted afterwards computes all
    of its tokens here. The blocks of one that is aborted while it lands are free once the pull is over.

    Source: vLLM 0.33.0, v1/core/sched/scheduler.py, ``schedule``, ``_update_waiting_for_remote_kv`` and
    ``finish_requests``; distributed/kv_transfer/kv_connector/v1/nixl/pull_scheduler.py.

    Attributes:
        pull: see `Pull`; at once unless another is put here before anything is planned.
        landing: the requests that hold blocks and wait for what is pulled into them, by row, in order.
        leaving: the requests that were aborted while they landed, by row.
        polls: of the pulls.
    """

    __slots__ = ("_landed", "_now", "_pulled", "landing", "leaving", "polls", "pull")

    parks = ("landing", "fenced")
    pulls = True

    def __init__(self, memory: KVCache, options: VllmV1Options, **others: Any) -> None:
        check_memory(memory)
        super().__init__(memory, options, **others)
        self.pull: Pull = _at_once
        self.landing: dict[int, EngineRequest] = {}
        self.leaving: dict[int, EngineRequest] = {}
        self.polls = Polls(self.in_flight)
        self._landed: set[int] = set()  # rows of those that are landing and whose KV is there
        self._pulled: set[int] = set()  # rows of all whose prompts were pulled: no prompt is pulled twice
        self._now = 0

    @property
    def has_work(self) -> bool:
        return super().has_work or bool(self.landing)

    def plan(self, now: int) -> Batch:
        self.events.parked_changes(now)  # before anything is given back
        self._note(self.polls.known())
        self._now = now
        batch = super().plan(now)
        self.polls.launch(now)
        if self.polls.unknown or (self._landed and batch.recomputed):
            self.must_replan = True
        return batch

    def idle(self, now: int) -> None:
        """Take back what aborted requests hold whose pulls are over, while the engine has nothing to do."""
        if not self.landing:
            self.events.parked_changes(now)
            self._note(self.polls.drain(now))

    @property
    def awaits(self) -> bool:
        """Whether requests land, or blocks are going to be free, without any iteration."""
        return bool(self.landing or self.leaving or self._fenced)

    def parked(self) -> Sequence[Sequence[EngineRequest]]:
        return [*self.landing.values(), *self.leaving.values()], self.fenced

    def finish(self, now: int) -> list[EngineRequest]:
        over = super().finish(now)
        if over and self._landed:
            self.must_replan = True  # one that has landed may run in its place
        return over

    def abort(self, row: int, now: int) -> int:
        if self._landed:
            self.must_replan = True
        request = self.landing.pop(row, None)
        if request is None:
            return super().abort(row, now)
        self.unreported = True
        if row in self._landed:
            self.events.parked_changes(now)
            self._landed.remove(row)
            self.memory.release(request)
        else:
            self.leaving[row] = request
        return 0

    def is_pulled(self, row: int) -> bool:
        """Whether the prompt of a request was pulled, or is being pulled."""
        return row in self._pulled

    # Waiting requests

    def _has_landed(self) -> bool:
        return bool(self._landed)

    def _admit(self, batch: Batch, budget: int) -> None:
        for row, request in list(self.landing.items()):
            if budget <= 0:
                self.must_replan = True
                return
            if not self.may_join(request):
                return
            if row not in self._landed:
                continue
            if self.running and self.watermark_blocks > self.memory.free_blocks:
                return
            self._run(request, batch)
            budget -= 1
        super()._admit(batch, budget)

    def _run(self, request: EngineRequest, batch: Batch) -> None:
        """Let a request run whose KV is there; the last token of its prompt is computed again."""
        del self.landing[request.row]
        self._landed.remove(request.row)
        self._settle_load(request)
        loaded = self._loaded_tokens(request)
        self._enter(request)
        self.context += request.length
        batch.prompts += (request,)
        self._compute(request, request.length - loaded, batch)

    def _start_load(self, request: EngineRequest, found: int) -> bool | None:
        if request.row in self._pulled:
            return None
        memory, length = self.memory, request.length
        # Those that land hold all of their prompts.
        if not self._take_for_load(request, length, length - found, (), {}):
            return False
        request.cached = found
        self.landing[request.row] = request
        self._pulled.add(request.row)
        missing = memory.held_blocks(request) - found // memory.block_size
        self.polls.expect(request.row, self.pull(request, missing, self._now))
        return True

    def _waits_elsewhere(self) -> bool:
        return self.awaits

    # Inside

    def _note(self, rows: Sequence[int]) -> None:
        """Note that pulls are over: the requests may run, or were aborted and free their blocks."""
        for row in rows:
            if row in self.leaving:
                self.memory.release(self.leaving.pop(row))
            else:
                self._landed.add(row)

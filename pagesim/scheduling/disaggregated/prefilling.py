"""vLLM v1 that only prefills: the blocks of a prompt stay held until a decoder has pulled them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pagesim.kvcache import KVCache
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.disaggregated.polls import Polls
from pagesim.scheduling.disaggregated.refusals import check_memory
from pagesim.scheduling.request import EngineRequest
from pagesim.scheduling.vllm_v1 import VllmV1
from pagesim.scheduling.vllm_v1_options import VllmV1Options


class PrefillingV1(VllmV1):
    """As `VllmV1`, for requests of one output token each.

    A request that is over keeps its blocks. They are free when the worker has reported that they were pulled,
    or that their lease is over; a request that is aborted before it is over frees its blocks at once.

    Source: vLLM 0.33.0, distributed/kv_transfer/kv_connector/v1/nixl/pull_scheduler.py,
    ``request_finished``, and v1/core/sched/scheduler.py, ``_free_request``.

    Attributes:
        holds: whether blocks stay held; if not, they are free when a request is over.
        held: the requests that are over and hold blocks, by row.
        polls: of their transfers.
    """

    __slots__ = ("held", "holds", "polls")

    parks = ("held_for_transfer",)

    def __init__(self, memory: KVCache, options: VllmV1Options, **others: Any) -> None:
        check_memory(memory)
        super().__init__(memory, options, **others)
        self.holds = True
        self.held: dict[int, EngineRequest] = {}
        self.polls = Polls(self.in_flight)

    def plan(self, now: int) -> Batch:
        self.events.parked_changes(now)
        for row in self.polls.known():
            self.memory.release(self.held.pop(row))
        batch = super().plan(now)
        self.polls.launch(now)
        if self.polls.unknown:
            self.must_replan = True
        return batch

    def idle(self, now: int) -> None:
        """Take back what was pulled by now, while the engine has nothing to do."""
        rows = self.polls.drain(now + 1)  # what happens now, no batch that is launched now reports
        if rows:
            self.events.parked_changes(now)
        for row in rows:
            self.memory.release(self.held.pop(row))

    @property
    def awaits(self) -> bool:
        """Whether blocks are going to be free without any iteration."""
        return bool(self.held)

    def parked(self) -> Sequence[Sequence[EngineRequest]]:
        return (list(self.held.values()),)

    def _waits_elsewhere(self) -> bool:
        return bool(self.held)

    def _let_go(self, request: EngineRequest) -> None:
        if not self.holds:
            super()._let_go(request)
            return
        self.unreported = True
        self._forget(request)
        if request.decodes:
            self.memory.stop_decoding(request)
        self.held[request.row] = request

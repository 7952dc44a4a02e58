"""Forks of beams: the step at which each running request's beams fork next, and the blocks copied."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

from pagesim.kvcache import BlockManager
from pagesim.scheduling.observer import Observer
from pagesim.scheduling.request import EngineRequest

NEVER: Final = (1 << 62) - 1


class Forks:
    """The running requests whose beams will fork again, by the step of the next fork.

    Attributes:
        heap: entries (step, order, request); an entry is stale if its request has been preempted since.
        copied: blocks that forks copied since the last `take_copied`, if memory cannot share blocks.
    """

    __slots__ = ("copied", "heap")

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, EngineRequest]] = []
        self.copied: list[tuple[EngineRequest, int]] = []

    def expect(self, request: EngineRequest) -> None:
        """Note when a running request's beams fork next, unless it finishes before."""
        assert request.family is not None
        assert request.family.beams is not None
        # Token t is sampled at the step at which a beam holds t − 1 tokens beyond the prompt.
        step = request.prompt + request.family.beams.token - 1 - request.length_offset
        if step < request.last_step:
            heappush(self.heap, (step, request.order, request))

    def next_step(self) -> int:
        """Return the step at which the next beams fork; there may be none left."""
        heap = self.heap
        while heap and not _holds(*heap[0]):
            heappop(heap)
        return heap[0][0] if heap else NEVER

    def fork(self, step: int, memory: BlockManager, events: Observer) -> None:
        """Fork the beams that are due at a step."""
        heap = self.heap
        while heap and heap[0][0] <= step:
            at, order, request = heappop(heap)
            if not _holds(at, order, request):
                continue
            assert request.family is not None
            assert request.family.beams is not None
            for dropped, survivor in request.family.beams.fork():
                blocks = memory.fork(request, dropped, survivor)
                if blocks:
                    self.copied.append((request, blocks))
                events.forked(request, dropped, survivor)
            self.expect(request)

    def take_copied(self) -> int:
        """Return and reset the number of copied blocks, without those of requests preempted since."""
        copied, self.copied = self.copied, []
        return sum([blocks for request, blocks in copied if request.last_step >= 0])


def _holds(step: int, order: int, request: EngineRequest) -> bool:
    """Return whether an entry of the heap is still valid: its request may have been preempted since."""
    return request.order == order and request.last_step >= step

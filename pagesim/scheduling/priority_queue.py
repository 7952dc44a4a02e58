"""The waiting queue by priority: smallest number first, then by arrival."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from pagesim.scheduling.queue import WaitingQueue
from pagesim.scheduling.request import EngineRequest

Urgency = tuple[int, int, int]
"""Priority, arrival time in ticks, and index among the arrivals; the smallest is served first."""


class PriorityQueue(WaitingQueue):
    """A waiting queue ordered by priority; preempted requests are sorted in by priority, too.

    Source: vLLM 0.33.0, v1/core/sched/request_queue.py, ``PriorityRequestQueue``.
    """

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        super().__init__()
        self._heap: list[tuple[Urgency, EngineRequest]] = []

    def urgency(self, request: EngineRequest) -> Urgency:
        """Return the sort key by which requests are served."""
        return self.arrivals.priority_of(request.index), request.arrival, request.index

    def arrive(self, now: int) -> None:
        before = self.arrived
        super().arrive(now)
        for index in range(before, self.arrived):
            request = self.arrivals.request(index)
            heappush(self._heap, (self.urgency(request), request))

    def head(self) -> EngineRequest | None:
        if self.holding:
            return self.holding[0]
        return self._heap[0][1] if self._heap else None

    def pop(self, request: EngineRequest) -> None:
        self.waiting -= 1
        if self.holding:
            del self.holding[0]
        else:
            heappop(self._heap)

    def requeue(self, request: EngineRequest) -> None:
        self.waiting += 1
        heappush(self._heap, (self.urgency(request), request))

    def abort(self, row: int) -> EngineRequest | None:
        if any(request.row == row for request in self.holding):
            return super().abort(row)
        self.waiting -= 1
        place = next(at for at, (_, request) in enumerate(self._heap) if request.row == row)
        _, request = self._heap.pop(place)
        heapify(self._heap)
        return request

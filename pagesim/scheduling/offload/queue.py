"""The waiting queue of an engine that loads: in front of it, requests that hold blocks already."""

from __future__ import annotations

from collections.abc import Sequence

from pagesim.scheduling.priority_queue import PriorityQueue
from pagesim.scheduling.queue import WaitingQueue
from pagesim.scheduling.request import EngineRequest


class _Holding(WaitingQueue):
    """Puts requests that hold the blocks into which they are loaded in front of all others.

    Attributes:
        holding: those, in their order.
    """

    __slots__ = ()

    holding: list[EngineRequest]

    def head(self) -> EngineRequest | None:
        return self.holding[0] if self.holding else super().head()

    def pop(self, request: EngineRequest) -> None:
        if self.holding:
            self.waiting -= 1
            del self.holding[0]
        else:
            super().pop(request)

    def put_back(self, holding: Sequence[EngineRequest], others: Sequence[EngineRequest]) -> None:
        """Put requests back that were passed over, in their order, in front of those that were not."""
        self.waiting += len(holding)
        self.holding[:0] = holding
        for request in reversed(others):
            self.requeue(request)

    def abort(self, row: int) -> EngineRequest | None:
        for place, request in enumerate(self.holding):
            if request.row == row:
                self.waiting -= 1
                return self.holding.pop(place)
        return super().abort(row)


class HoldingQueue(_Holding):
    """As `WaitingQueue`, where preempted requests come first of those that hold nothing."""

    __slots__ = ("holding",)

    def __init__(self) -> None:
        super().__init__(preempted_first=True)
        self.holding = []


class HoldingPriorityQueue(_Holding, PriorityQueue):
    """As `PriorityQueue`."""

    __slots__ = ("holding",)

    def __init__(self) -> None:
        super().__init__()
        self.holding = []

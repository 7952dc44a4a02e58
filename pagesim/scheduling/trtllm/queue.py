"""The waiting queue of TensorRT-LLM: a request keeps its position from its arrival to its end."""

from __future__ import annotations

from bisect import insort
from operator import attrgetter

from pagesim.scheduling.queue import WaitingQueue
from pagesim.scheduling.request import EngineRequest

_index = attrgetter("index")


class PlaceQueue(WaitingQueue):
    """A waiting queue in the order of the trace, including requests that come back."""

    __slots__ = ()

    def is_ahead(self, request: EngineRequest, fresh: int) -> bool:
        return request.index < fresh

    def requeue(self, request: EngineRequest) -> None:
        self.waiting += 1
        insort(self._preempted, request, key=_index)

"""The waiting queue of SGLang: requests in the order in which they entered, or as a policy sorts them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice

from pagesim.scheduling.queue import WaitingQueue
from pagesim.scheduling.request import EngineRequest
from pagesim.scheduling.sglang.request import SglangRequest
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class SglangQueue(WaitingQueue):
    """A waiting queue that a policy sorts; a request that lost its place goes to the end.

    Args:
        prepare: called once with each request, before anything else looks at it.

    Attributes:
        processed: tokens that the engine has processed.
    """

    __slots__ = ("_entries", "_prepare", "_requests", "processed")

    def __init__(self, prepare: Callable[[SglangRequest], None]) -> None:
        super().__init__()
        self._requests: deque[SglangRequest] = deque()
        self._prepare = prepare
        self._entries = 0
        self.processed = 0

    def arrive(self, now: int) -> None:
        before = self.arrived
        super().arrive(now)
        for index in range(before, self.arrived):
            request = self.arrivals.request(index, SglangRequest)
            self._prepare(request)
            self._enter(request)

    def first(self, most: int) -> list[SglangRequest]:
        """Return the first requests in their order, at most so many."""
        return list(islice(self._requests, most))

    def head(self) -> SglangRequest | None:
        return self._requests[0] if self._requests else None

    def sort(self, requests: Iterable[SglangRequest]) -> None:
        """Put all requests that wait into this order."""
        self._requests = deque(requests)

    def pop(self, request: EngineRequest) -> None:
        self.waiting -= 1
        self._requests.popleft()

    def requeue(self, request: EngineRequest) -> None:
        assert isinstance(request, SglangRequest)
        self.waiting += 1
        self._enter(request)

    def abort(self, row: int) -> EngineRequest | None:
        self.waiting -= 1
        request = next(each for each in self._requests if each.row == row)
        self._requests.remove(request)
        return request

    def _enter(self, request: SglangRequest) -> None:
        self._entries += 1
        request.entry = self._entries
        request.processed_at_entry = self.processed
        self._requests.append(request)

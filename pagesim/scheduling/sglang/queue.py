"""The waiting queue of SGLang: requests in the order in which they entered, or as a policy sorts them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable

from pagesim.scheduling.queue import WaitingQueue
from pagesim.scheduling.request import EngineRequest
from pagesim.scheduling.sglang.request import SglangRequest
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class SglangQueue(WaitingQueue):
    """See `WaitingQueue`. Who lost its place goes to the end.

    An arrival is its index until it is looked at: a queue of a hundred thousand requests is one of numbers.

    Args:
        prepare: called once with each request, before anything else looks at it.
        looks_at_all: whether every request is looked at when it arrives.

    Attributes:
        processed: tokens that the engine has processed.
    """

    __slots__ = ("_entries", "_entries_counted", "_looks_at_all", "_prepare", "processed")

    def __init__(self, prepare: Callable[[SglangRequest], None], *, looks_at_all: bool) -> None:
        super().__init__()
        self._looks_at_all = looks_at_all
        self._entries: deque[int | SglangRequest] = deque()
        self._prepare = prepare
        self._entries_counted = 0
        self.processed = 0

    def arrive(self, now: int) -> None:
        before = self.arrived
        super().arrive(now)
        self._entries.extend(range(before, self.arrived))
        if self._looks_at_all:
            for place in range(len(self._entries) - (self.arrived - before), len(self._entries)):
                self._made(place)

    def first(self, most: int | None = None) -> list[SglangRequest]:
        """Return the first requests in their order, at most so many."""
        entries = self._entries
        seen = len(entries) if most is None else min(most, len(entries))
        return [self._made(place) for place in range(seen)]

    def head(self) -> SglangRequest | None:
        return self._made(0) if self._entries else None

    def at(self, place: int) -> SglangRequest:
        """Return the request at a place, which there is."""
        return self._made(place)

    def sort(self, requests: Iterable[SglangRequest]) -> None:
        """Put all requests that wait into this order."""
        self._entries = deque(requests)

    def take(self, count: int, taken: Container[SglangRequest]) -> None:
        """Take requests out, which are among the first ones.

        Args:
            count: how many.
            taken: which.
        """
        if not count:
            return
        self.waiting -= count
        entries = self._entries
        kept: list[int | SglangRequest] = []
        while count:
            entry = entries.popleft()
            if entry in taken:
                count -= 1
            else:
                kept.append(entry)
        if kept:
            entries.extendleft(reversed(kept))

    def requeue(self, request: EngineRequest) -> None:
        assert isinstance(request, SglangRequest)
        self.waiting += 1
        self._enter(request)
        self._entries.append(request)

    def abort(self, row: int) -> EngineRequest | None:
        self.waiting -= 1
        index = self.arrivals.index_of(row)
        for place, entry in enumerate(self._entries):
            if entry == index or (isinstance(entry, SglangRequest) and entry.row == row):
                del self._entries[place]
                return entry if isinstance(entry, SglangRequest) else None
        raise AssertionError("a request that waits is in the queue")

    def _made(self, place: int) -> SglangRequest:
        entry = self._entries[place]
        if isinstance(entry, SglangRequest):
            return entry
        request = self.arrivals.request(entry, SglangRequest)
        self._prepare(request)
        self._enter(request)
        self._entries[place] = request
        return request

    def _enter(self, request: SglangRequest) -> None:
        self._entries_counted += 1
        request.entered = self._entries_counted
        request.processed = self.processed

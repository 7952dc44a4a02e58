"""The waiting queue, first come, first served: an index range of new requests, and preempted requests."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from operator import attrgetter

from pagesim.scheduling.arrivals import NEVER, NO_ARRIVALS, Arrivals
from pagesim.scheduling.request import EngineRequest
from pagesim.setup.compiled import mypyc_attr

_arrival = attrgetter("arrival")


@mypyc_attr(allow_interpreted_subclasses=True)
class WaitingQueue:
    """Requests that have arrived and do not run.

    New requests are stored as a range of indices, so a queue of a hundred thousand under overload costs
    nothing.

    Args:
        preempted_first: whether a preempted request goes to the very front; if not, it is sorted in by
            arrival, behind requests that arrived at the same time.

    Attributes:
        waiting: number of waiting requests.
        holding: waiting requests that already hold blocks, into which a connector loads their KV; they come
            before all others.
        next_arrival: time of the next arrival, in ticks; ``NEVER`` if there is none.
    """

    __slots__ = (
        "_aborted",
        "_fresh",
        "_fresh_head",
        "_preempted",
        "arrivals",
        "arrived",
        "holding",
        "next_arrival",
        "preempted_first",
        "waiting",
    )

    def __init__(self, *, preempted_first: bool = False) -> None:
        self.preempted_first = preempted_first
        self.arrivals = NO_ARRIVALS
        self.arrived = 0  # requests [0, arrived) have arrived
        self.next_arrival = NEVER
        self.waiting = 0
        self.holding: list[EngineRequest] = []
        self._fresh = 0  # requests [_fresh, arrived) have never run
        self._aborted: set[int] = set()  # those of [_fresh, arrived) that were aborted
        self._preempted: list[EngineRequest] = []
        self._fresh_head: EngineRequest | None = None

    def expect(self, arrivals: Arrivals) -> None:
        """Set the requests that will arrive."""
        self.arrivals = arrivals
        self.announce()

    def announce(self) -> None:
        """Note that requests were appended to those that will arrive."""
        arrivals, arrived = self.arrivals, self.arrived
        self.next_arrival = arrivals.ticks[arrived] if arrived < len(arrivals.ticks) else arrivals.next_send

    def arrive(self, now: int) -> None:
        """Enqueue every request that has arrived by ``now``."""
        if self.next_arrival > now:
            return
        arrivals, before = self.arrivals, self.arrived
        ticks = arrivals.ticks
        arrived, requests = before, len(ticks)
        while arrived < requests:
            following = ticks[arrived]
            if following > now:
                break
            arrived += 1
        else:
            following = arrivals.next_send
        self.next_arrival = following
        self.waiting += arrived - before
        self.arrived = arrived

    def head(self) -> EngineRequest | None:
        """Return the request at the head of the queue; None if the queue is empty."""
        if not self.waiting:
            return None
        if self.holding:
            return self.holding[0]
        if self._aborted:
            self._pass_over_aborted()
        preempted, fresh = self._preempted, self._fresh
        if preempted and (
            self.preempted_first or fresh == self.arrived or self.is_ahead(preempted[0], fresh)
        ):
            return preempted[0]
        head = self._fresh_head
        if head is None:
            head = self._fresh_head = self.arrivals.request(fresh)
        return head

    def is_ahead(self, request: EngineRequest, fresh: int) -> bool:
        """Return whether a preempted request is served before the new one with index ``fresh``."""
        return request.arrival < self.arrivals.ticks[fresh]

    def pop(self, request: EngineRequest) -> None:
        """Remove the head of the queue, as returned by ``head``."""
        self.waiting -= 1
        if self.holding:
            del self.holding[0]
        elif request is self._fresh_head:
            self._fresh_head = None
            self._fresh += 1
        else:
            del self._preempted[0]

    def requeue(self, request: EngineRequest) -> None:
        """Put a preempted request back."""
        self.waiting += 1
        if self.preempted_first:
            self._preempted.insert(0, request)
        else:
            insort(self._preempted, request, key=_arrival)

    def put_back(self, holding: Sequence[EngineRequest], others: Sequence[EngineRequest]) -> None:
        """Put skipped requests back at the front of the queue, in their order.

        Args:
            holding: skipped requests that hold blocks.
            others: skipped requests that hold none.
        """
        self.waiting += len(holding)
        self.holding[:0] = holding
        for request in reversed(others):
            self.requeue(request)

    def abort(self, row: int) -> EngineRequest | None:
        """Remove a waiting request from the queue; return it if it has run before or holds blocks."""
        self.waiting -= 1
        for place, request in enumerate(self.holding):
            if request.row == row:
                return self.holding.pop(place)
        for place, request in enumerate(self._preempted):
            if request.row == row:
                return self._preempted.pop(place)
        self._aborted.add(self.arrivals.index_of(row))
        if self._fresh_head is not None and self._fresh_head.row == row:
            self._fresh_head = None
        return None

    def _pass_over_aborted(self) -> None:
        while self._fresh in self._aborted:
            self._aborted.remove(self._fresh)
            self._fresh += 1

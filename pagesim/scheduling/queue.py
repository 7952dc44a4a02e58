"""The waiting queue, first come first served: fresh arrivals behind a pointer, the preempted by arrival."""

from __future__ import annotations

from bisect import bisect_left, insort
from operator import attrgetter

from pagesim.scheduling.group import NOBODY, Arrivals, Group


class WaitingQueue:
    """Requests that have arrived and do not run.

    A queue that grows to a hundred thousand requests under overload costs nothing: fresh ones are a range of
    rows.

    Args:
        preempted_first: whether a preempted group goes to the very front; if not, it takes its place by
            arrival, behind those that arrived at the same instant.
    """

    def __init__(self, *, preempted_first: bool = False) -> None:
        self.preempted_first = preempted_first
        self.arrivals = NOBODY
        self.arrived = 0  # requests [0, arrived) have arrived
        self.next_arrival: int | None = None  # when the next one will, in ticks
        self._fresh = 0  # requests [_fresh, arrived) have never run
        self._gone: set[int] = set()  # those of [_fresh, arrived) whose client went away
        self._preempted: list[Group] = []
        self._sequences = 0
        self.waiting = 0  # how many wait
        self._first_fresh: Group | None = None

    def __len__(self) -> int:
        return self.waiting

    def expect(self, arrivals: Arrivals) -> None:
        """Say who is going to arrive."""
        self.arrivals = arrivals
        self.next_arrival = arrivals.ticks[0] if len(arrivals) else None

    def announce(self) -> None:
        """Say that a request was added to the end of those that are going to arrive."""
        if self.next_arrival is None:
            self.next_arrival = self.arrivals.ticks[self.arrived]

    def arrive(self, now: int) -> None:
        """Let everybody in who has arrived by ``now``."""
        if self.next_arrival is None or self.next_arrival > now:
            return
        ticks = self.arrivals.ticks
        arrived = self.arrived
        while arrived < len(ticks) and ticks[arrived] <= now:
            arrived += 1
        self.waiting += arrived - self.arrived
        self.arrived = arrived
        self.next_arrival = ticks[arrived] if arrived < len(ticks) else None

    def head(self) -> Group | None:
        """Return the request whose turn it is, made a group if it is fresh; None when nobody waits."""
        while self._gone and self._fresh in self._gone:
            self._gone.remove(self._fresh)
            self._fresh += 1
        fresh = self._fresh
        if self._preempted:
            first = self._preempted[0]
            if self.preempted_first or fresh == self.arrived or first.arrival < self.arrivals.ticks[fresh]:
                return first
        elif fresh == self.arrived:
            return None
        if self._first_fresh is None:
            self._first_fresh = self.group_of(fresh)
        return self._first_fresh

    def pop(self, group: Group) -> None:
        """Take the head, as ``head`` returned it, out of the queue."""
        self.waiting -= 1
        if group is self._first_fresh:
            self._first_fresh = None
            self._fresh += 1
        else:
            del self._preempted[0]

    def abort(self, row: int) -> Group | None:
        """Let a request that waits go away; return its group if it was preempted."""
        self.waiting -= 1
        for place, group in enumerate(self._preempted):
            if group.row == row:
                return self._preempted.pop(place)
        self._gone.add(bisect_left(self.arrivals.row, row))
        if self._first_fresh is not None and self._first_fresh.row == row:
            self._first_fresh = None
        return None

    def requeue(self, group: Group) -> None:
        """Put a preempted group back."""
        self.waiting += 1
        if self.preempted_first:
            self._preempted.insert(0, group)
        else:
            insort(self._preempted, group, key=attrgetter("arrival"))

    def group_of(self, index: int) -> Group:
        """Return the group of a request, its sequences numbered in the order in which groups are made."""
        arrivals = self.arrivals
        first, samples = self._sequences, arrivals.samples[index]
        self._sequences += samples
        return Group(
            arrivals.row[index],
            arrivals.ticks[index],
            arrivals.prompt[index],
            arrivals.output[index],
            (first,) if samples == 1 else tuple(range(first, first + samples)),
            arrivals.outputs_of(index),
            arrivals.beams_of(index),
            arrivals.content_of(index),
        )

    def give(self) -> tuple[int, int, list[Group], Group | None]:
        """Let somebody else keep the queue, until `take`; nobody in it has gone away.

        Returns:
            How many requests have arrived, how many of them are no longer fresh, the preempted, and the first
            of the fresh if it was made a group already.
        """
        preempted, head = self._preempted, self._first_fresh
        self._preempted, self._first_fresh = [], None
        return self.arrived, self._fresh, preempted, head

    def take(self, arrived: int, fresh: int, preempted: list[Group], head: Group | None = None) -> None:
        """Keep the queue again, with what has become of it."""
        self.arrived, self._fresh, self._preempted, self._first_fresh = arrived, fresh, preempted, head
        self.waiting = arrived - fresh + len(preempted)
        ticks = self.arrivals.ticks
        self.next_arrival = ticks[arrived] if arrived < len(ticks) else None

    @property
    def somebody_left(self) -> bool:
        """Whether somebody who waits went away and is yet to be passed over."""
        return bool(self._gone)

"""The requests that wait in a lane, in numbers: those that were preempted, and those that arrived since."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

from pagesim.scheduling import Arrivals


class Waiting:
    """Who waits, in the order of `pagesim.scheduling.queue`. Requests are known by their index.

    Args:
        arrivals: all that will ever wait, as far as one knows.
        until: nothing starts after this instant, in ticks.

    Attributes:
        row, ticks, prompt: columns of the arrivals.
        lost: who was preempted, in the order of the queue.
        lengths: the tokens that each of them must recompute.
        arrived: how many have arrived.
        fresh: the first of those who never ran.
        waiting: how many have arrived and do not run: those of ``lost`` and of [``fresh``, ``arrived``).
        end_of_time: from when on nothing starts, in ticks.
        horizon: when the next request arrives, or the end of time.
        welcome: called with the row of each request that runs for the first time.
    """

    __slots__ = (
        "arrived",
        "end_of_time",
        "fresh",
        "horizon",
        "lengths",
        "lost",
        "prompt",
        "row",
        "ticks",
        "waiting",
        "welcome",
    )

    preempted_first = False
    """Whether who was preempted waits at the very front, or behind those that arrived at the same instant."""

    def __init__(self, arrivals: Arrivals, until: int) -> None:
        self.row, self.ticks, self.prompt = arrivals.row, arrivals.ticks, arrivals.prompt
        self.lost: list[int] = []
        self.lengths: dict[int, int] = {}
        self.waiting = self.arrived = self.fresh = 0
        self.horizon = self.end_of_time = until + 1
        self.welcome: Callable[[int], None] | None = None

    @property
    def arrival_matters(self) -> bool:
        """As `Scheduler.arrival_matters`."""
        return not self.waiting

    @property
    def next_arrival(self) -> int | None:
        """When the next request arrives, in ticks; None when no more will."""
        return self.ticks[self.arrived] if self.arrived < len(self.ticks) else None

    def announce(self) -> None:
        """As `Scheduler.announce`."""
        arrival = self.next_arrival
        self.horizon = self.end_of_time if arrival is None else min(arrival, self.end_of_time)

    def _head(self) -> int:
        """Return whose turn it is; somebody waits."""
        lost, fresh = self.lost, self.fresh
        if lost and (
            self.preempted_first or fresh == self.arrived or self.ticks[lost[0]] < self.ticks[fresh]
        ):
            return lost[0]
        return fresh

    def _length(self, index: int) -> int:
        """Return the tokens that a waiting request asks memory for."""
        return self.lengths[index] if index in self.lengths else self.prompt[index]

    def _dequeue(self, index: int) -> None:
        """Take the head, who now runs, out of the queue."""
        if index == self.fresh:
            self.fresh = index + 1
            if self.welcome is not None:
                self.welcome(self.row[index])
        else:
            del self.lost[0]
            del self.lengths[index]
        self.waiting -= 1

    def _requeue(self, index: int, length: int) -> None:
        """Let a request wait again, to compute so many tokens."""
        self.waiting += 1
        self.lengths[index] = length
        if self.preempted_first:
            self.lost.insert(0, index)
        else:
            ticks = self.ticks
            self.lost.insert(bisect_right(self.lost, ticks[index], key=ticks.__getitem__), index)

    def _arrive(self, now: int) -> None:
        """Let everybody in who has arrived by ``now``; somebody has."""
        ticks, before, end_of_time = self.ticks, self.arrived, self.end_of_time
        arrived, requests = before + 1, len(ticks)
        while arrived < requests and ticks[arrived] <= now:
            arrived += 1
        self.waiting += arrived - before
        self.arrived = arrived
        self.horizon = min(ticks[arrived], end_of_time) if arrived < requests else end_of_time

"""Closed loops over one engine: arrivals that clients send, and the observer that tells them what is over."""

from __future__ import annotations

from collections.abc import Callable

from pagesim.scheduling.added import AddedArrivals
from pagesim.scheduling.arrivals import NEVER, Arrivals
from pagesim.scheduling.observer import Observer
from pagesim.scheduling.queue import WaitingQueue
from pagesim.scheduling.request import EngineRequest, Status
from pagesim.sim.clients import Clients


class SentArrivals(AddedArrivals):
    """The requests that clients have sent so far, and when the next one is sent if none is over before.

    Args:
        whole: all that there are.
        clients: send them.
    """

    sends = True

    def __init__(self, whole: Arrivals, clients: Clients) -> None:
        super().__init__(whole)
        self.clients = clients
        self.abort_at: Callable[[int, int], None] | None = None  # of the engine

    @property
    def next_send(self) -> int:
        return self.clients.next_send

    def send_until(self, now: int) -> None:
        for index, ticks in self.clients.send_until(now):
            self.add(index, ticks)
            row = self.row[-1]
            leaves = self.clients.leaves(row)
            if leaves is not None and self.abort_at is not None:
                self.abort_at(leaves, row)


class ClosedLoop(Observer):
    """Tells clients when their requests are over, so that the next ones are sent.

    Args:
        arrivals: that they send.
        queue: of the engine.
    """

    __slots__ = ("_arrivals", "_queue")

    def __init__(self, arrivals: SentArrivals, queue: WaitingQueue) -> None:
        self._arrivals = arrivals
        self._queue = queue

    def finished(self, request: EngineRequest, now: int) -> None:
        self._over(request.row, now)

    def left(self, row: int, now: int, status: Status) -> None:
        self._over(row, now)

    def next_look(self) -> int:
        # A client may go away while what it sent waits: that is known once it is sent.
        clients = self._arrivals.clients
        return clients.next_send if clients.impatient else NEVER

    def _over(self, row: int, now: int) -> None:
        self._arrivals.clients.over(row, now)
        self._arrivals.send_until(now)
        self._queue.announce()

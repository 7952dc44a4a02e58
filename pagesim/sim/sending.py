"""Sends requests on a SimPy clock, to a single engine or to a cluster's router."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import simpy

from pagesim.scheduling.added import AddedArrivals
from pagesim.scheduling.arrivals import NEVER, Arrivals
from pagesim.sim.clients import Clients
from pagesim.sim.engine import Engine
from pagesim.sim.process import ArrivalEvent, EngineProcess, start

Route = Callable[[int, int], None]
"""Called with a request's index among the accepted ones and the instant at which it is sent."""


def send_at(environment: simpy.Environment, ticks: Sequence[int], route: Route) -> None:
    """Send each request at its own instant; ``ticks`` is ``[N]`` and non-decreasing."""

    def send() -> Any:
        for index, instant in enumerate(ticks):
            if instant > environment.now:
                yield ArrivalEvent(environment, instant - int(environment.now))
            route(index, instant)

    start(environment, send())


class ClosedLoop:
    """Sends the requests of closed-loop clients, when they are due and when earlier ones end.

    Requests that are sent because others end at an instant are routed after everything that ends at that
    instant, and before engines decide again.

    Args:
        environment: the clock.
        clients: the clients that send the requests.
    """

    def __init__(self, environment: simpy.Environment, clients: Clients) -> None:
        self.environment = environment
        self._clients = clients
        self._next_alarm = NEVER
        self._called = False

    def start(self, route: Route) -> None:
        """Start sending."""
        self._route = route
        self._set_alarm()

    def request_ended(self, row: int, now: int) -> None:
        """Tell the clients that a sample, or a request with all its samples, ended, by its trace row."""
        self._clients.request_ended(row, now)
        if not self._called:
            self._called = True
            event = self.environment.event()
            event.callbacks.append(self._send)
            event.succeed()

    def _set_alarm(self) -> None:
        alarm = self._clients.next_send
        if alarm != self._next_alarm and alarm != NEVER:
            event = ArrivalEvent(self.environment, alarm - int(self.environment.now))
            event.callbacks.append(self._send)
        self._next_alarm = alarm

    def _send(self, event: simpy.Event) -> None:
        if not isinstance(event, ArrivalEvent):
            self._called = False
        now = int(self.environment.now)
        for index, _ in self._clients.send_until(now):
            self._route(index, now)
        self._set_alarm()


class SentArrivals(AddedArrivals):
    """The requests that clients have sent so far to one engine, which knows when the next one will come.

    Args:
        whole: all requests, sent or not.
        clients: the clients that send them.
    """

    def __init__(self, whole: Arrivals, clients: Clients) -> None:
        super().__init__(whole)
        self.clients = clients

    @property
    def next_send(self) -> int:
        return self.clients.next_send


class ClosedEngine(EngineProcess):
    """One engine and the clients that send to it, on a separate clock.

    Args:
        arrivals: the arrivals that the engine's scheduler reads.
    """

    def __init__(self, arrivals: SentArrivals) -> None:
        self._arrivals = arrivals
        self._loop = ClosedLoop(simpy.Environment(), arrivals.clients)
        super().__init__(arrivals, tell=self._loop.request_ended)

    def replay(self, engine: Engine) -> None:
        """Replay all that the clients send to an engine; this object must be among its observers."""
        self.start(self._loop.environment, engine)
        self._loop.start(self._route)
        self._loop.environment.run()
        self.end()
        del self._loop  # it and this object refer to each other

    def _route(self, index: int, now: int) -> None:
        row = self._arrivals.whole.row[index]
        self.submit(index, row, now, self._arrivals.clients.abort_time(row))

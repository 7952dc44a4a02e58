"""Closed loops over a cluster: clients that share one clock with its replicas."""

from __future__ import annotations

from collections.abc import Callable

import simpy

from pagesim.experiments.clusters.instants import ArrivalEvent
from pagesim.scheduling.arrivals import NEVER
from pagesim.sim.clients import Clients


class ClosedLoop:
    """Routes what clients send, when a request is due and when others are over.

    What is sent because requests are over at an instant is routed after all that are over at it, and before
    the replicas decide again.

    Args:
        environment: the cluster's clock.
        clients: who send.
    """

    def __init__(self, environment: simpy.Environment, clients: Clients) -> None:
        self._environment = environment
        self._clients = clients
        self._next_alarm = NEVER
        self._called = False

    def start(self, route: Callable[[int, int], None]) -> None:
        """Begin to send; ``route`` is called with the index of a request and the instant."""
        self._route = route
        self._set_alarm()

    def over(self, row: int, now: int) -> None:
        """Say that a request is over, as `Clients.over`."""
        self._clients.over(row, now)
        if not self._called:
            self._called = True
            event = self._environment.event()
            event.callbacks.append(self._send)
            event.succeed()

    def _set_alarm(self) -> None:
        alarm = self._clients.next_send
        if alarm != self._next_alarm and alarm != NEVER:
            event = ArrivalEvent(self._environment, alarm - int(self._environment.now))
            event.callbacks.append(self._send)
        self._next_alarm = alarm

    def _send(self, event: simpy.Event) -> None:
        if not isinstance(event, ArrivalEvent):
            self._called = False
        now = int(self._environment.now)
        for index, _ in self._clients.send_until(now):
            self._route(index, now)
        self._set_alarm()

"""Instants: in which order what is due at the same instant of a cluster happens."""

from __future__ import annotations

from typing import ClassVar

import simpy
from simpy.events import NORMAL, URGENT, EventPriority


class Instant(simpy.Event):
    """An instant that is some ticks away; of those at the same tick the smallest priority comes first.

    Args:
        environment: the clock.
        delay: ticks.
    """

    PRIORITY: ClassVar[EventPriority] = NORMAL
    """That of SimPy's own events, here of iterations that are over."""

    def __init__(self, environment: simpy.Environment, delay: int) -> None:
        super().__init__(environment)
        self._ok = True
        self._value = None
        environment.schedule(self, priority=self.PRIORITY, delay=delay)


class ArrivalEvent(Instant):
    """The instant of an arrival: routed before anything else happens that is due at the same instant."""

    PRIORITY = URGENT


class HandoverEvent(Instant):
    """The instant at which requests are handed over: after all that is over at it, before engines decide."""

    PRIORITY = EventPriority(NORMAL + 1)


class Decision(Instant):
    """The instant at which an engine decides: after all that is over at it and what is routed for that."""

    PRIORITY = EventPriority(NORMAL + 2)

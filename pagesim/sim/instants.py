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
        turn: among those of its kind at the same tick, those of a smaller turn come first.
    """

    PRIORITY: ClassVar[EventPriority] = NORMAL
    """That of SimPy's own events, here of iterations that are over."""

    def __init__(self, environment: simpy.Environment, delay: int, turn: int = 0) -> None:
        super().__init__(environment)
        self._ok = True
        self._value = None
        environment.schedule(self, priority=EventPriority(self.PRIORITY + turn), delay=delay)


class ArrivalEvent(Instant):
    """The instant of an arrival: routed before anything else happens that is due at the same instant."""

    PRIORITY = URGENT


class Settlement(Instant):
    """The instant at which clients go away: after the iterations that are over at it."""

    PRIORITY = EventPriority(NORMAL + 1)


class HandoverEvent(Instant):
    """The instant at which requests are handed over: after all that is over at it, before engines decide."""

    PRIORITY = EventPriority(NORMAL + 2)


class Decision(Instant):
    """The instant at which an engine decides: after all that is over at it and what is routed for that.

    Engines take turns, so that what they share, as links, does not depend on when they decided before.
    """

    PRIORITY = EventPriority(NORMAL + 3)

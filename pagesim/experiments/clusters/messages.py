"""Messages between the processes of vLLM's data parallelism: their latency and their order at equal times."""

from __future__ import annotations

from collections.abc import Callable

import simpy
from simpy.events import NORMAL, EventPriority

from pagesim.sim.process import Instant

Handle = Callable[[], None]


class ToServer(Instant):
    """A message reaches an API server, after the requests that arrive at the same instant."""

    PRIORITY = NORMAL


class ToCoordinator(Instant):
    """The coordinator's turn, before that of any rank."""

    PRIORITY = EventPriority(NORMAL + 1)


class ToRank(Instant):
    """A message reaches a rank, before the turn of any rank."""

    PRIORITY = EventPriority(NORMAL + 2)


class Messages:
    """Delivers messages on an environment's clock.

    Args:
        environment: simulation environment, whose clock counts ticks.
        latency: delay of each message, in ticks; with 0 a message is handled at once.
    """

    def __init__(self, environment: simpy.Environment, latency: int) -> None:
        self.environment = environment
        self.latency = latency

    def send(self, kind: type[Instant], handle: Handle) -> None:
        """Call ``handle`` when a message of this kind arrives."""
        if not self.latency:
            handle()
            return
        kind(self.environment, self.latency).callbacks.append(lambda _: handle())

"""Ranks of vLLM's data parallelism: engines that report their load and may step together."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

import simpy

from pagesim.experiments.clusters.balancer import LoadBalancer
from pagesim.experiments.clusters.coordinator import Coordinator, Counts
from pagesim.experiments.clusters.engine import Replica
from pagesim.experiments.clusters.messages import Messages, ToRank, ToServer
from pagesim.sim.process import Decision, Events


class RankGroup(NamedTuple):
    """What the ranks of a deployment have in common.

    Attributes:
        messages: transport for everything that ranks send.
        coordinator: recipient of the ranks' load.
        balancer: API servers' load balancer; None if a router that does not use the coordinator replaces it.
    """

    messages: Messages
    coordinator: Coordinator
    balancer: LoadBalancer | None


class Rank(Replica):
    """Runs one rank, an engine of its own, which reports its load before and after each step.

    Source: vLLM 0.33.0, v1/engine/core.py, ``run_busy_loop`` and ``_maybe_publish_request_counts``.

    Args:
        others: as `Replica`.
        group: what the deployment's ranks share.

    Attributes:
        last: when the rank last acted, in ticks, and how many messages were published by then.
    """

    def __init__(self, *others: Any, group: RankGroup) -> None:
        super().__init__(*others)
        self.group = group
        self.last = 0, 0
        self._reported = (0, 0)

    # On the cluster's clock

    def submit(self, index: int, row: int, now: int, abort: int | None) -> None:
        def arrive() -> None:
            there = int(self._environment.now)
            super(Rank, self).submit(index, row, there, None if abort is None else max(abort, there))

        self.group.messages.send(ToRank, arrive)

    def _ended(self, row: int, now: int) -> None:
        balancer = self.group.balancer
        if balancer is not None:
            self.group.messages.send(ToServer, lambda: balancer.over(row))
        super()._ended(row, now)

    def _run(self) -> Events:
        engine, recorder, now = self.engine, self.engine.recorder, int(self._environment.now)
        while now <= engine.until:
            self._take_inputs(now)
            self._busy = engine.decide(now)
            if engine.run.steps and self._load() != self._reported:
                engine.replan_at(engine.run.start)  # report the planned step when it ends
            if self._busy:
                yield from self._finish_step(now)
            else:
                yield from self._wait(now)
            now = int(self._environment.now)
            self._report()
            if recorder.iterations >= recorder.full_at:
                recorder.flush()

    def _finish_step(self, now: int) -> Events:
        """Wait until the planned step has finished, then rest if the engine does."""
        engine = self.engine
        if now < engine.over_at:
            while not (yield from self._turns_at(engine.over_at)):
                pass  # something arrived first
        now = int(self._environment.now)
        again_at = engine.complete(now)
        self._busy = False
        if now < again_at:
            yield from self._turns_at(again_at)

    def _turns_at(self, instant: int) -> Generator[simpy.Event, Any, bool]:
        """Wait for the rank's turn at an instant; return False if something interrupted the wait."""
        environment = self._environment
        try:
            yield Decision(environment, instant - int(environment.now), self._turn)
        except simpy.Interrupt:
            return False
        self.last = int(environment.now), len(self.group.coordinator.published)
        return True

    def _wait(self, now: int) -> Events:
        """Wait for input while there is nothing to do."""
        self._idle = self._environment.event()
        yield self._idle
        yield from self._turns_at(int(self._environment.now))

    def _replans_at(self, now: int) -> list[int]:
        # The rank reports a request whether or not it changes a decision. A decision made at this very
        # instant stands.
        return [now + (self.engine.run.decided == now)]

    def _take_inputs(self, now: int) -> None:
        self.engine.settle(now)
        self._report()

    def _report(self) -> None:
        """Send the coordinator this rank's load if it has changed."""
        if self.group.balancer is None:
            return
        load, memory = self._load(), self.engine.scheduler.memory
        if load != self._reported:
            self._reported = load
            waiting, running = load
            self._send_counts(Counts(waiting, running, 1.0 - memory.free_blocks / memory.num_blocks))

    def _load(self) -> tuple[int, int]:
        """Return the numbers of waiting and running requests."""
        scheduler = self.engine.scheduler
        return scheduler.queue.waiting, len(scheduler.running)

    def _send_counts(self, counts: Counts) -> None:
        self.group.coordinator.report(self._turn, counts, 0, 0)

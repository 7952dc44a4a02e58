"""Replicas that only prefill or only decode: their requests continue, or began, on another replica."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import simpy

from pagesim.experiments.clusters.engine import Replica
from pagesim.scheduling.arrivals import NEVER
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.disaggregated import PrefillConnector, PullConnector
from pagesim.scheduling.observer import FastForward
from pagesim.scheduling.request import EngineRequest, Status
from pagesim.scheduling.vllm_v1 import VllmV1
from pagesim.sim.engine import NAP
from pagesim.sim.process import Events

Leave = Callable[[int, int, Status, bool], None]
"""Called when a request has left a replica: with its row, the time, its status there, and whether it kept its
blocks to the end."""


class PoolReplica(Replica):
    """A `Replica` that reports to the cluster when requests leave it.

    An engine that has requests but computes nothing, because it waits for transfers, polls them every
    millisecond. The simulation skips the polls at which nothing can have changed.

    Args:
        leave: see `Leave`.
        others: as `Replica`.
    """

    _computes = True  # whether the last planned batch has any tokens

    def __init__(self, *others: Any, leave: Leave) -> None:
        super().__init__(*others)
        self._leave = leave
        self._settles = True

    @property
    def scheduler(self) -> VllmV1:
        """The engine's scheduler."""
        scheduler = self.engine.scheduler
        assert isinstance(scheduler, VllmV1)
        return scheduler

    @property
    def connector(self) -> PrefillConnector | PullConnector:
        """The scheduler's connector."""
        connector = self.scheduler.connector
        assert isinstance(connector, PrefillConnector | PullConnector)
        return connector

    def planned(self, batch: Batch, now: int, start: int, ticks: int) -> None:
        super().planned(batch, now, start, ticks)
        self._computes = batch.tokens > 0

    def fast_forwarded(self, run: FastForward) -> None:
        self._computes = True

    def finished(self, request: EngineRequest, now: int) -> None:
        super().finished(request, now)
        self._leave(request.row, now, Status.FINISHED, True)

    def left(self, row: int, now: int, status: Status) -> None:
        super().left(row, now, status)
        self._leave(row, now, status, False)

    def next_look(self) -> int:
        return self.connector.completions.next_look

    def _rest(self, now: int, again_at: int) -> Events:
        if self._computes or not self.scheduler.has_work:
            yield from super()._rest(now, again_at)
        else:
            yield from self._sleep(now)

    def _wait(self, now: int) -> Events:
        scheduler = self.scheduler
        if not scheduler.has_work:
            self._poll(now)
        if scheduler.has_work or self.connector.completions.next_look != NEVER:
            yield from self._sleep(now)
        else:
            yield from super()._wait(now)

    def _poll(self, now: int) -> None:
        """Check which transfers have finished, while the engine has nothing to do."""
        self.engine.events.held_without_running_changes(now)
        self.connector.idle(now)

    def _sleep(self, now: int) -> Events:
        """Sleep for whole milliseconds until a plan may differ from the last one."""
        scheduler, environment = self.scheduler, self._environment
        wake_at = now
        if scheduler.awaits and not (scheduler.must_replan or scheduler.running or scheduler.unreported):
            wake_at = min(self.connector.completions.next_look, self.engine.next_abort)
        self._idle = environment.event()
        events = [self._idle]
        if wake_at != NEVER:
            events.append(environment.timeout(max(1, -(-(wake_at - now) // NAP)) * NAP))
        yield simpy.AnyOf(environment, events)
        self._idle = None
        woken = int(environment.now)
        yield from self._await_turn(woken + (-(woken - now) % NAP if woken > now else NAP))


class Prefiller(PoolReplica):
    """Runs one prefill engine."""

    def acknowledge(self, row: int, now: int) -> None:
        """Receive that a request's blocks were pulled, will not be pulled, or that their lease has ended.

        An event at the very instant of a batch launch is reported with the next batch.
        """
        self.connector.completions.expect(row, now + 1)
        if self._busy:
            self._replan_at(now + 1)
        elif self._idle is not None:
            if self.scheduler.has_work:
                self._wake()
            else:
                self._poll(now)

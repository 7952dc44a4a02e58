"""A replica of a cluster: an engine that learns of its requests only when they are routed to it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import simpy

from pagesim.experiments.clusters.instants import Decision, Settlement
from pagesim.experiments.clusters.replicas import Replicas, Says
from pagesim.scheduling.added import AddedArrivals
from pagesim.scheduling.arrivals import NEVER
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.observer import Observer
from pagesim.scheduling.request import EngineRequest, Status
from pagesim.sim.engine import Engine


class Replica(Observer):
    """Runs one engine of a cluster, and updates the router's view of its requests.

    The engine fast-forwards until a request is routed to it; then it decides again at that instant. A
    fast-forward is carried out when its time has passed, so cutting it short costs nothing.

    Args:
        number: of the replica.
        replicas: the router's view.
        routed: what its scheduler expects.
        prompts: prompt tokens of every row of the trace.
        tell: in a closed loop, called with the row of a request that is over and the instant.
    """

    engine: Engine

    def __init__(
        self,
        number: int,
        replicas: Replicas,
        routed: AddedArrivals,
        prompts: Sequence[int],
        tell: Callable[[int, int], None] | None = None,
    ) -> None:
        self.routed = routed
        self._number = number
        self._replicas = replicas
        self._prompts = prompts
        self._tell = tell
        self._sends_on = tell is not None  # whether requests are routed because others are over
        self._never_ran: set[int] = set()  # rows
        self._busy = self._closed = False
        self._idle: simpy.Event | None = None
        self._process: simpy.Process | None = None
        replicas.ask[number] = self._says

    # What becomes of requests

    def planned(self, batch: Batch, now: int, start: int, ticks: int) -> None:
        for request in batch.prompts:
            self._waits_no_longer(request.row)

    def finished(self, request: EngineRequest, now: int) -> None:
        self._replicas.outstanding[self._number] -= 1
        if self._tell is not None:
            self._tell(request.row, now)

    def left(self, row: int, now: int, status: Status) -> None:
        self._replicas.outstanding[self._number] -= 1
        self._waits_no_longer(row)
        if self._tell is not None:
            self._tell(row, now)

    def _waits_no_longer(self, row: int) -> None:
        if row in self._never_ran:
            self._never_ran.remove(row)
            self._replicas.waiting_tokens[self._number] -= self._prompts[row]

    # On the cluster's clock

    def start(self, environment: simpy.Environment, engine: Engine) -> None:
        """Begin to serve."""
        self.engine = engine
        engine.chains = False  # or it could not say from when on it does what
        self._environment = environment
        self._process = environment.process(self._serve())

    def submit(self, index: int, row: int, now: int, abort: int | None) -> None:
        """Take a request that arrives now.

        Args:
            index: of the request among those of all replicas.
            row: of the trace.
            now: ticks.
            abort: when its client goes away, if it does.
        """
        engine = self.engine
        matters = engine.scheduler.arrival_matters()
        self.routed.add(index, now)
        engine.scheduler.queue.announce()
        self._never_ran.add(row)
        self._replicas.outstanding[self._number] += 1
        self._replicas.waiting_tokens[self._number] += self._prompts[row]
        if abort is not None:
            engine.abort_at(abort, row)
        if self._busy:
            instants = [now] if matters else []
            self._replan_at(*instants, *([] if abort is None else [abort]))
        else:
            self._wake()

    def close(self) -> None:
        """Nothing more will be routed."""
        self._closed = True
        self._wake()

    def _replan_at(self, *instants: int) -> None:
        """Let no step of the fast-forward at hand be decided from these instants on."""
        before = self.engine.over_at
        for instant in instants:
            self.engine.replan_at(instant)
        if self.engine.over_at < before:
            assert self._process is not None
            self._process.interrupt()

    def _wake(self) -> None:
        if self._idle is not None:
            self._idle.succeed()
            self._idle = None

    def _serve(self) -> Generator[simpy.Event, Any, None]:
        environment, engine = self._environment, self.engine
        queue, recorder = engine.scheduler.queue, engine.recorder
        while (now := int(environment.now)) <= engine.until:
            if engine.decide(now):
                self._replicas.changed.add(self._number)
                self._busy = True
                over = False
                while not over:
                    try:
                        yield environment.timeout(engine.over_at - int(environment.now))
                        over = True
                    except simpy.Interrupt:  # a request was routed here: what it does is over earlier
                        self._replicas.changed.add(self._number)
                now = engine.over_at
                self._busy = False
                again_at = engine.complete(now)
                if self._sends_on:
                    self._replicas.changed.add(self._number)
                if again_at > now or self._sends_on:
                    # What is sent because of what is over now, here or elsewhere, comes first.
                    yield from self._rest(now, again_at)
                if recorder.iterations >= recorder.full_at:
                    recorder.flush()
                continue
            self._replicas.changed.add(self._number)
            if queue.next_arrival != NEVER:
                yield environment.timeout(queue.next_arrival - now)
            elif self._closed:
                return
            else:
                yield from self._wait(now)

    def _rest(self, now: int, again_at: int) -> Generator[simpy.Event, Any, None]:
        """Wait until the engine decides again; before any of them does, clients go away at all of them."""
        yield Settlement(self._environment, again_at - now)
        self.engine.settle(again_at)
        yield Decision(self._environment, 0, self._number)

    def _wait(self, now: int) -> Generator[simpy.Event, Any, None]:
        """Wait until a request is routed here."""
        self._idle = self._environment.event()
        yield self._idle

    def _says(self) -> Says:
        scheduler, run = self.engine.scheduler, self.engine.run
        if not self._busy:  # it has nothing to do, or is about to decide
            return Says(scheduler.context, int(self._environment.now), (0, 0, 0, 0), 0)
        if not run.steps:
            return Says(scheduler.context, self.engine.over_at, (0, 0, 0, 0), 0)
        if scheduler.in_flight == 1:
            steps = run.steps, run.first, run.increment, run.context
            return Says(scheduler.context, run.start, steps, run.sequences)
        # The first step was decided already, the second is when the first begins.
        steps = run.steps - 1, run.first, run.increment, run.context + run.sequences
        return Says(run.context + scheduler.resting_context, run.start, steps, run.sequences)

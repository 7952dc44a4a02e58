"""Runs an engine as a SimPy process, alone or in a cluster, with one event per decision.

Events at the same instant happen in this order: requests arrive, iterations end, clients abort, requests are
handed over, engines decide.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, ClassVar

import simpy
from simpy.events import NORMAL, URGENT, EventPriority

from pagesim.errors import PagesimError
from pagesim.scheduling.added import AddedArrivals
from pagesim.scheduling.arrivals import NEVER
from pagesim.scheduling.observer import Observer
from pagesim.scheduling.request import EngineRequest, Status
from pagesim.sim.clock import LONGEST_S

if TYPE_CHECKING:  # the engine itself imports this module
    from pagesim.sim.engine import Engine

Events = Generator[simpy.Event, Any, None]


class Instant(simpy.Event):
    """An event some ticks from now; at the same tick, the smallest priority comes first.

    Args:
        environment: the clock.
        delay: ticks from now.
        turn: order among events of the same kind at the same tick, smallest first.
    """

    PRIORITY: ClassVar[EventPriority] = NORMAL
    """The priority of SimPy's own events, which here are the ends of iterations."""

    def __init__(self, environment: simpy.Environment, delay: int, turn: int = 0) -> None:
        super().__init__(environment)
        self._ok = True
        self._value = None
        environment.schedule(self, priority=EventPriority(self.PRIORITY + turn), delay=delay)


class ArrivalEvent(Instant):
    """A request's arrival: routed before anything else that is due at the same instant."""

    PRIORITY = URGENT


class Settlement(Instant):
    """The instant at which clients abort requests: after the iterations that end then."""

    PRIORITY = EventPriority(NORMAL + 1)


class HandoverEvent(Instant):
    """The instant at which requests are handed over: after everything that ends then, before any decision."""

    PRIORITY = EventPriority(NORMAL + 2)


class Decision(Instant):
    """The instant at which an engine decides: after every event that is due then, including routing.

    Engines decide in a fixed order, so that shared resources such as links are granted deterministically.
    """

    PRIORITY = EventPriority(NORMAL + 3)


def start(environment: simpy.Environment, events: Events) -> simpy.Process:
    """Start a process whose exceptions the environment raises unchanged, not as SimPy's copies."""
    process = environment.process(events)
    process.callbacks.append(_raise_unchanged)
    return process


def drive(environment: simpy.Environment, engine: Engine) -> simpy.Process:
    """Start and return the process of an engine whose arrivals are all known.

    Args:
        environment: its clock, in ticks.
        engine: the engine, with its arrivals; no others are added.
    """
    return EngineProcess().start(environment, engine)


class EngineProcess(Observer):
    """Runs an engine on an environment's clock: it decides, then waits until that decision is carried out.

    An engine fast-forwards up to the next event that it knows of: an arrival, the end of a copy, an abort.
    Events that it learns of only as they happen interrupt the fast-forward. A fast-forward is applied only
    when its time has passed, so cutting it short costs nothing.

    A subclass may override `_wait`, `_rest` and `_replans_at`. With ``tell``, the process must be among the
    engine's observers.

    Args:
        routed: receives submitted requests; None if the engine knows all arrivals.
        turn: order among engines that decide at the same instant.
        tell: in a closed loop, called with the row of each request that ends and the instant.

    Attributes:
        engine: the engine that runs.
    """

    engine: Engine

    def __init__(
        self,
        routed: AddedArrivals | None = None,
        *,
        turn: int = 0,
        tell: Callable[[int, int], None] | None = None,
    ) -> None:
        self.routed = routed
        self._turn = turn
        self._tell = tell
        self._settles = tell is not None  # whether the end of a request can cause others to be sent
        self._busy = False  # whether the last decision is being carried out
        self._idle: simpy.Event | None = None

    def start(self, environment: simpy.Environment, engine: Engine) -> simpy.Process:
        """Start serving; return the process."""
        self.engine = engine
        self._environment = environment
        self._events = self._run()
        self._process = start(environment, self._events)
        return self._process

    def end(self) -> None:
        """Stop deciding, and drop the references that would keep the engine until a garbage collection."""
        self._tell = None
        self.engine.end()
        self._events.close()

    def _run(self) -> Events:
        environment, engine, settles = self._environment, self.engine, self._settles
        queue, recorder, now = engine.scheduler.queue, engine.recorder, int(environment.now)
        if settles:
            yield from self._await_turn(now)
        while now <= engine.until:
            self._busy = engine.decide(now)
            if self._busy:
                while self._busy:
                    try:
                        yield environment.timeout(engine.over_at - now)
                        self._busy = False
                    except simpy.Interrupt:
                        now = int(environment.now)
                now = engine.over_at
                again_at = engine.complete(now)
                if again_at > now or settles:
                    yield from self._rest(now, again_at)
                    now = int(environment.now)
                if recorder.iterations >= recorder.full_at:
                    recorder.flush()
            elif self.routed is None and queue.next_arrival == NEVER:
                return
            else:
                yield from self._wait(now)
                now = int(environment.now)
        if not engine.ends_early:
            raise PagesimError(
                f"the run exceeds {LONGEST_S:g} s of simulated time; replay fewer requests or set until"
            )

    # May be overridden

    def _replans_at(self, now: int) -> list[int]:
        """Return the instants at which a request that arrives now forces an iteration to be planned."""
        return [now] if self.engine.scheduler.arrival_matters() else []

    def _rest(self, now: int, again_at: int) -> Events:
        """Wait until the engine's next decision, at ``again_at``."""
        yield from self._await_turn(again_at)

    def _wait(self, now: int) -> Events:
        """Wait for an arrival when no request is running or waiting."""
        environment, next_arrival = self._environment, self.engine.scheduler.queue.next_arrival
        if next_arrival != NEVER:
            yield environment.timeout(next_arrival - now)
        else:
            self._idle = environment.event()
            yield self._idle
        if self._settles:
            yield from self._await_turn(int(environment.now))

    def _await_turn(self, instant: int) -> Events:
        """Wait for the engine's turn to decide; all engines apply their aborts before any decides."""
        yield Settlement(self._environment, instant - int(self._environment.now))
        while self.engine.settle(instant):  # a request sent because of an abort may be aborted at once, too
            yield Settlement(self._environment, 0)
        yield Decision(self._environment, 0, self._turn)

    # Ends of requests

    def finished(self, request: EngineRequest, now: int) -> None:
        self._ended(request.row, now)

    def left(self, row: int, now: int, status: Status) -> None:
        self._ended(row, now)

    def _ended(self, row: int, now: int) -> None:
        if self._tell is not None:
            self._tell(row, now)
            self.engine.scheduler.queue.announce()  # the time of the next arrival may have changed

    # Interruptions

    def submit(self, index: int, row: int, now: int, abort: int | None) -> None:
        """Accept a request that arrives now.

        Args:
            index: index of the request among those that are sent.
            row: its row in the trace.
            now: the current time, in ticks.
            abort: when its client aborts it, in ticks; None if never.
        """
        engine = self.engine
        instants = self._replans_at(now)
        assert self.routed is not None
        self.routed.add(index, now)
        engine.scheduler.queue.announce()
        if abort is not None:
            engine.abort_at(abort, row)
        if self._busy:
            self._replan_at(*instants, *([] if abort is None else [abort]))
        else:
            self._wake()

    def _replan_at(self, *instants: int) -> None:
        """Cut the current fast-forward so that no step is decided from these instants on."""
        before = self.engine.over_at
        for instant in instants:
            self.engine.replan_at(instant)
        if self.engine.over_at < before:
            self._process.interrupt()

    def _wake(self) -> None:
        if self._idle is not None:
            self._idle.succeed()
            self._idle = None


def _raise_unchanged(process: simpy.Event) -> None:
    """Raise the exception of a failed process itself; SimPy would raise a copy of it."""
    if not process.ok:
        error: Any = process.value
        raise error

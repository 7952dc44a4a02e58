"""An engine as a process on a SimPy environment, alone or in a cluster: an event a decision.

What is due at the same instant happens in this order: requests arrive, iterations end, clients go away,
requests are handed over, engines decide.
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

if TYPE_CHECKING:  # an engine replays by this process
    from pagesim.sim.engine import Engine

Events = Generator[simpy.Event, Any, None]


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
    """The instant at which an engine decides: after every event that is due then, routing included.

    Engines decide in a fixed order, so that shared resources, as links, are granted in the same order always.
    """

    PRIORITY = EventPriority(NORMAL + 3)


def start(environment: simpy.Environment, events: Events) -> simpy.Process:
    """Start a process; what it raises is raised by the environment as it is, and not as SimPy's copy."""
    process = environment.process(events)
    process.callbacks.append(_raise_unchanged)
    return process


def drive(environment: simpy.Environment, engine: Engine) -> simpy.Process:
    """Start the process of an engine that knows what will arrive; return it.

    Args:
        environment: its clock, in ticks.
        engine: with its arrivals; no further ones come.
    """
    return EngineProcess().start(environment, engine)


class EngineProcess(Observer):
    """Runs an engine on the clock of an environment: it decides, and waits until that is over.

    An engine fast-forwards up to what it knows of: arrivals, ends of copies, aborts. What it learns of only
    when it happens interrupts the fast-forward. That is carried out when its time has passed, so cutting it
    short costs nothing.

    A subclass may change `_wait`, `_rest` and `_replans_at`. One that tells clients what is over is among the
    engine's observers.

    Args:
        routed: where a request is added that is submitted; None where the engine knows what will arrive.
        turn: engines that decide at one instant do so in this order.
        tell: in a closed loop, called with the row of a request that is over and the instant.

    Attributes:
        engine: that is run.
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
        self._settles = tell is not None  # whether requests are sent because others are over
        self._busy = False  # whether what was decided last is under way
        self._idle: simpy.Event | None = None

    def start(self, environment: simpy.Environment, engine: Engine) -> simpy.Process:
        """Begin to serve; return the process."""
        self.engine = engine
        self._environment = environment
        self._events = self._run()
        self._process = start(environment, self._events)
        return self._process

    def end(self) -> None:
        """Decide nothing more, and let go of what would keep the engine until a garbage collection."""
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

    # What a subclass may change

    def _replans_at(self, now: int) -> list[int]:
        """Return the instants at which an iteration must be planned because a request arrives now."""
        return [now] if self.engine.scheduler.arrival_matters() else []

    def _rest(self, now: int, again_at: int) -> Events:
        """Wait until the engine decides again at this instant."""
        yield from self._await_turn(again_at)

    def _wait(self, now: int) -> Events:
        """Wait until a request arrives, where none runs or waits."""
        environment, next_arrival = self._environment, self.engine.scheduler.queue.next_arrival
        if next_arrival != NEVER:
            yield environment.timeout(next_arrival - now)
        else:
            self._idle = environment.event()
            yield self._idle
        if self._settles:
            yield from self._await_turn(int(environment.now))

    def _await_turn(self, instant: int) -> Events:
        """Wait for the engine's turn to decide; before any of them does, clients go away at all of them."""
        yield Settlement(self._environment, instant - int(self._environment.now))
        while self.engine.settle(instant):  # what is sent because a client went away may leave at once, too
            yield Settlement(self._environment, 0)
        yield Decision(self._environment, 0, self._turn)

    # What becomes of requests

    def finished(self, request: EngineRequest, now: int) -> None:
        self._ended(request.row, now)

    def left(self, row: int, now: int, status: Status) -> None:
        self._ended(row, now)

    def _ended(self, row: int, now: int) -> None:
        if self._tell is not None:
            self._tell(row, now)
            self.engine.scheduler.queue.announce()  # when the next one is sent may have changed

    # What interrupts it

    def submit(self, index: int, row: int, now: int, abort: int | None) -> None:
        """Take a request that arrives now.

        Args:
            index: of the request among those that are sent.
            row: of the trace.
            now: ticks.
            abort: when its client goes away, if it does.
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
        """Let no step of the fast-forward at hand be decided from these instants on."""
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
    """Raise what a process raised; SimPy itself raises a copy of it."""
    if not process.ok:
        error: Any = process.value
        raise error

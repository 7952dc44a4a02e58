"""The engine: replays arrivals through a scheduler on a simulated clock.

One turn of its loop is one decision: the scheduler plans an iteration, the executor says how long it takes,
and where the scheduler knows that nothing can change for a while the engine fast-forwards over the iterations
that follow. A fast-forward is never an approximation: the records, iteration by iteration, are those of
stepping.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Sequence

import simpy

from pagesim.accounting.records import Recorder
from pagesim.scheduling.arrivals import NEVER
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.dead_ends import DeadEnd
from pagesim.scheduling.observer import FastForward, Observer
from pagesim.scheduling.observers import Observers
from pagesim.scheduling.offload.jobs import Job
from pagesim.scheduling.request import Status
from pagesim.setup.compiled import mypyc_attr
from pagesim.sim.clock import LONGEST_S, TICKS_PER_SECOND, span_of, steps_before
from pagesim.sim.copies import TierCopies
from pagesim.sim.executors import Executor
from pagesim.sim.process import drive

NAP = TICKS_PER_SECOND // 1000
"""Ticks for which the engine process sleeps after an empty schedule while it has requests."""


class StrictCompatError(Exception):
    """The real engine goes no further: the dead end, the request's row, and the instant in ticks."""

    def __init__(self, dead_end: DeadEnd, row: int, now: int) -> None:
        super().__init__(dead_end, row, now)
        self.dead_end = dead_end
        self.row = row
        self.now = now


@mypyc_attr(allow_interpreted_subclasses=True)
class Engine:
    """Runs one scheduler to the end: an iteration is decided when the one before it is over.

    Args:
        scheduler: with its memory and its arrivals.
        executor: what an iteration takes.
        recorder: what is written down.
        observers: further ones, called after the recorder.
        fast_forward: whether iterations that decide nothing are taken at once; without, each is planned.
        until: no iteration is decided after this instant, in ticks; None for no end.
        aborts: when a request's client goes away unless it is over: (ticks, row of the trace), in order.
        strict_compat: whether to stop, with `StrictCompatError`, where the real engine hangs, leaks or dies.
        copies: carries out what is copied between the device and a tier, where there is one.

    Attributes:
        dead_ends: how often a request met one, and which.
        run: the fast-forward at hand; it has no steps if the next iteration is planned.
        over_at: when what was decided last is over, in ticks.
    """

    __slots__ = (
        "_arrived",
        "_due",
        "_looks",
        "_naps",
        "_next_abort",
        "_still_waits",
        "_tells_growth",
        "aborted_tokens",
        "aborts",
        "copies",
        "dead_ends",
        "ends_early",
        "events",
        "executor",
        "fast_forward",
        "over_at",
        "recorder",
        "run",
        "scheduler",
        "strict_compat",
        "until",
    )

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        recorder: Recorder,
        *,
        observers: Sequence[Observer] = (),
        fast_forward: bool = True,
        until: int | None = None,
        aborts: Sequence[tuple[int, int]] = (),
        strict_compat: bool = False,
        copies: TierCopies | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.copies = copies
        self._arrived: Sequence[Job] = ()  # jobs that were over when what was decided last was launched
        self._due = (
            NEVER  # when a copy ends, of which the next iteration learns; 0 where each must be planned
        )
        self._naps = False  # whether that computes nothing
        self._still_waits = False  # whether what waits does so in the next iteration, too
        self.executor = executor
        self.recorder = recorder
        self.events: Observer = Observers([recorder, *observers]) if observers else recorder
        scheduler.events = self.events
        self.fast_forward = fast_forward
        self.ends_early = until is not None
        self.until = int(LONGEST_S) * TICKS_PER_SECOND if until is None else until
        self.strict_compat = strict_compat
        self.dead_ends: Counter[DeadEnd] = Counter()
        self.aborts = list(aborts)
        self.aborted_tokens = 0
        self._next_abort = 0  # the place of the next of them
        self.run = FastForward()
        self.over_at = 0
        self.events.begun(scheduler)
        self._looks = any(type(each).next_look is not Observer.next_look for each in observers)
        self._tells_growth = any(type(each).advanced is not Observer.advanced for each in observers)
        self._prepare()

    # Driving it

    def replay(self) -> None:
        """Replay everything that the scheduler expects, on a clock of its own.

        Raises:
            PagesimError: the simulated time exceeds what the clock can count.
        """
        environment = simpy.Environment()
        drive(environment, self)
        environment.run()
        self.end()

    def decide(self, now: int) -> bool:
        """Decide what happens from ``now`` on, until ``over_at``.

        Returns:
            Whether anything does; if not, no request runs or waits.
        """
        scheduler, queue = self.scheduler, self.scheduler.queue
        if queue.next_arrival <= now:
            queue.arrive(now)
        if self.aborts:
            self._abort_until(now)
        copies = self.copies
        if copies is not None:
            copies.advance(now)  # what moves from tier to tier goes on beside the engine
        run = self.run
        run.steps = 0
        run.decided = now
        if self.fast_forward and (self._still_waits or not (queue.waiting or scheduler.swapped)):
            # No request waits for a place that it may get: no plan is needed unless another decision is due.
            steps = scheduler.steps_until_next_decision()
            if steps > 0:
                self._fast_forward(steps, now, now)
                if run.steps:
                    return True
        while True:
            batch = scheduler.plan(now)
            gives_up = batch.stuck or batch.ignored or batch.leaked
            if batch.recomputed or batch.swapped_out or gives_up:
                self.events.departed(batch, now)
                if gives_up:
                    self._give_up(batch, now)
            if batch.tokens or batch.is_iteration:
                break
            if scheduler.has_work and batch.transfers is not None:
                break  # the loop goes on as long as anything is copied
            # Where memory was given back, a request that waits may be admitted at the same instant.
            if not (batch.recomputed or batch.stuck):
                scheduler.ran_dry()
                self.events.idle(now, queue.next_arrival)
                return False
        ticks = self.executor.execute(batch)
        start = now
        transfers = batch.transfers
        if copies is not None and transfers is not None:
            start = copies.before(transfers, now, now)
        self.events.planned(batch, now, start, ticks)
        self.over_at = end = start + ticks
        if copies is not None and transfers is not None:
            self._naps = not batch.tokens
            self._arrived = copies.after(transfers, start, end, naps=self._naps)
            self._due = 0 if self._arrived else copies.due
        if self.fast_forward:
            steps = scheduler.steps_until_next_decision()
            if steps > 0:
                self._fast_forward(steps, end, end)
        return True

    def complete(self, now: int) -> int:
        """End what was decided last, at ``over_at``; return when to decide again."""
        run, copies = self.run, self.copies
        if run.steps:
            self.events.fast_forwarded(run)
            self.scheduler.advance(run.steps)
            if self._tells_growth:
                self.events.advanced(run)
            if copies is not None and self._due < now:
                self._arrived = copies.over_by(run.start + span_of(run.first, run.increment, run.steps - 1))
        if self.aborts and self.scheduler.drops_last_token:
            self._let_in(now)
        scheduler = self.scheduler
        over = scheduler.finish(now)
        self._still_waits = False
        if copies is not None and self._arrived:
            scheduler.transferred(self._arrived)
            self._arrived = ()
            self._due = copies.due  # of those that are left
            self._still_waits = not (
                over or scheduler.must_replan or self.aborts or self._naps or scheduler.arrival_matters()
            )
        if self._naps:
            self._naps = False
            return now + NAP if self.scheduler.has_work else now
        return now

    def end(self) -> None:
        """Decide nothing more, and hand over what was recorded."""
        self.recorder.flush()
        # Who observes would keep the engine, and all arrivals, until a garbage collection.
        self.scheduler.events = self.events = Observer()

    def replan_at(self, instant: int) -> int:
        """Let no step of the fast-forward at hand be decided from then on; return the new ``over_at``."""
        run = self.run
        if run.steps:
            kept = steps_before(run.first, run.increment, instant - run.start)
            if kept < run.steps:
                run.steps = kept
                self.over_at = run.end = run.start + span_of(run.first, run.increment, kept)
        return self.over_at

    def abort_at(self, instant: int, row: int) -> None:
        """Say that a request's client goes away at an instant, unless it is over by then."""
        insort(self.aborts, (instant, row), lo=self._next_abort)

    def settle(self, now: int) -> bool:
        """Let requests in that have arrived, and clients go away, before `decide` at the same instant.

        Returns:
            Whether any client went away.
        """
        before = self._next_abort
        if self.scheduler.queue.next_arrival <= now or self.aborts:
            self._let_in(now)
        return self._next_abort > before

    @property
    def next_abort(self) -> int:
        """When the next client goes away whose request may not be over, in ticks; ``NEVER`` if none does."""
        return self.aborts[self._next_abort][0] if self._next_abort < len(self.aborts) else NEVER

    # Inside

    def _prepare(self) -> None:
        """Set up what another kind of engine keeps in addition."""
        return

    def _let_in(self, now: int) -> None:
        """Let arrivals into the queue, and then clients go away."""
        self.scheduler.queue.arrive(now)
        self._abort_until(now)

    def _fast_forward(self, steps: int, now: int, start: int, ahead: int = 0) -> None:
        """Set ``run`` to the iterations ahead that decode with the same requests and decide nothing.

        Args:
            steps: as many as the scheduler allows, if nothing happens outside.
            now: when the first of them would be decided, in ticks.
            start: when it would be carried out.
            ahead: 1 where each further one is decided when the one before it starts, and not when that ends.
        """
        scheduler, run = self.scheduler, self.run
        arrival = scheduler.queue.next_arrival
        if steps <= 0 or arrival <= run.decided:
            return  # what was sent while a plan was made is not in the queue yet
        resting = scheduler.resting
        sequences = scheduler.running_sequences - resting
        context = scheduler.context - scheduler.resting_context + sequences * scheduler.growth
        decode_run = self.executor.decode_run(sequences, context)
        if decode_run is None:
            return
        first, increment, linear = decode_run
        if linear < steps:
            steps = linear
        end = start + steps * first + increment * (steps * (steps - 1) >> 1)
        # From the horizon on no iteration is decided without a plan.
        horizon = self.until + 1
        if self._due < end:
            # The iteration that learns of the end of a copy is the last one for which nothing is decided.
            if not self._due:
                return
            before = 0 if self._due <= now else ahead + steps_before(first, increment, self._due - start)
            steps = min(steps, before + 1)
            end = start + steps * first + increment * (steps * (steps - 1) >> 1)
        if arrival < end and arrival < horizon and scheduler.arrival_matters():
            horizon = arrival
        if self.aborts:
            horizon = min(horizon, self.next_abort)
        if self._looks:
            horizon = min(horizon, self.events.next_look())
        if horizon < end:
            if horizon <= now:
                return
            before = ahead + steps_before(first, increment, horizon - start)
            if before < steps:
                steps = before
                end = start + steps * first + increment * (steps * (steps - 1) >> 1)
        run.start = start
        run.steps = steps
        run.first = first
        run.increment = increment
        run.context = context
        run.sequences = sequences
        run.resting = resting
        run.end = end
        self.over_at = end - (first + increment * (steps - 1)) if ahead else end

    def _abort_until(self, now: int) -> None:
        """Abort requests whose clients went away by now; leave the next such instant for fast-forwards."""
        aborts, status = self.aborts, self.recorder.log.status
        while self._next_abort < len(aborts):
            when, row = aborts[self._next_abort]
            waits_or_runs = status[row] == Status.UNFINISHED
            if waits_or_runs and when > now:
                return
            self._next_abort += 1
            if waits_or_runs:
                self.aborted_tokens += self.scheduler.abort(row, now)
                self.events.left(row, now, Status.ABORTED)
                self.scheduler.queue.arrive(now)  # its client, or another one, may send the next request

    def _give_up(self, batch: Batch, now: int) -> None:
        """Note the requests that were given up while the batch was planned."""
        for request, dead_end in batch.stuck:
            self._meet(dead_end, request.row, now)
            self.events.left(request.row, now, Status.STUCK)
        for request in batch.leaked:
            self._meet(DeadEnd.LEAK, request.row, now)
        for request in batch.ignored:
            self.events.left(request.row, now, Status.IGNORED)

    def _meet(self, dead_end: DeadEnd, row: int, now: int) -> None:
        if self.strict_compat:
            raise StrictCompatError(dead_end, row, now)
        self.dead_ends[dead_end] += 1

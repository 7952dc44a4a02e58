"""The engine: replays arrivals through a scheduler on a simulated clock.

Each turn of its loop makes one decision: the scheduler plans an iteration, and the executor returns its
duration. Where the scheduler knows that nothing can change for a while, the engine fast-forwards over the
following iterations. Fast-forwarding is exact: it leaves the same per-iteration records as stepping.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, deque
from collections.abc import Sequence
from typing import Final

import simpy

from pagesim.accounting.records import Recorder
from pagesim.scheduling.arrivals import NEVER
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.failure_modes import FailureMode, StrictCompatError
from pagesim.scheduling.observer import FastForward, Observer
from pagesim.scheduling.observers import Observers
from pagesim.scheduling.offload.jobs import Job
from pagesim.scheduling.request import Status
from pagesim.setup.compiled import mypyc_attr
from pagesim.sim.clock import LONGEST_S, TICKS_PER_SECOND, span_of, steps_before
from pagesim.sim.copies import TierCopies
from pagesim.sim.executor import Executor
from pagesim.sim.pipeline import Pipeline
from pagesim.sim.process import drive

NAP: Final = TICKS_PER_SECOND // 1000
"""Ticks for which the engine sleeps after an empty schedule while it still has requests."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Engine:
    """Runs one scheduler to the end, with at most `Scheduler.in_flight` batches in flight.

    Each turn schedules a batch. It then waits for the oldest batch in flight if that limit is reached, or if
    there is nothing else to do. With a limit of one, an iteration is decided when the previous one has
    finished. With two, it is decided when the one before that has finished, and starts when the previous one
    ends; with more, it starts when the first pipeline stage is free. With two or more a schedule may be
    empty: that is an iteration of zero length, in flight like any other.

    Source: vLLM 0.33.0, v1/engine/core.py, ``EngineCore.step`` and ``step_with_batch_queue``.

    Args:
        scheduler: the scheduler to run, with its memory and arrivals.
        executor: returns how long each iteration takes.
        recorder: records what happens.
        observers: further observers, called after the recorder.
        fast_forward: whether to skip over iterations that decide nothing; if not, each one is planned.
        until: last instant, in ticks, at which an iteration is decided or a request aborted; None for none.
        aborts: when clients abort requests that have not finished: (ticks, row of the trace), in order.
        strict_compat: whether to raise `StrictCompatError` where the real engine hangs, leaks or dies.
        copies: carries out the copies between the device and its tiers; None without tiers.
        pipeline: the stages that batches pass through; None if a single stage holds all layers.

    Attributes:
        failure_modes: number of requests that met each failure mode.
        run: the current fast-forward; it has zero steps if the next iteration is planned.
        over_at: when the last decision's iterations or wait end, in ticks.
        waits: whether that is when the oldest batch in flight finishes.
    """

    __slots__ = (
        "_ahead",
        "_due",
        "_first_at",
        "_in_flight",
        "_is_settled",
        "_looks",
        "_naps",
        "_next_abort",
        "_tells_growth",
        "aborted_tokens",
        "aborts",
        "copies",
        "ends_early",
        "events",
        "executor",
        "failure_modes",
        "fast_forward",
        "over_at",
        "pipeline",
        "recorder",
        "run",
        "scheduler",
        "strict_compat",
        "until",
        "waits",
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
        pipeline: Pipeline | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.copies = copies
        self.pipeline = pipeline
        # For each batch in flight, when it ends and which jobs had finished when it was launched.
        self._in_flight: deque[tuple[int, Sequence[Job]]] = deque()
        self._ahead = scheduler.in_flight - 1
        self._first_at = 0  # when the first step of the current fast-forward is decided
        self.waits = False
        self._naps = False  # whether the last batch was empty, so that the engine may sleep
        # Whether the next iteration can only repeat the last one: all waiting requests were considered, and
        # no request has since arrived or left that could change the outcome.
        self._is_settled = False
        # When the next copy ends, for an iteration to learn of; 0 if each iteration must be planned.
        self._due = NEVER
        self.executor = executor
        self.recorder = recorder
        self.events: Observer = Observers([recorder, *observers]) if observers else recorder
        scheduler.events = self.events
        self.fast_forward = fast_forward
        self.ends_early = until is not None
        self.until = int(LONGEST_S) * TICKS_PER_SECOND if until is None else until
        self.strict_compat = strict_compat
        self.failure_modes: Counter[FailureMode] = Counter()
        self.aborts = list(aborts)
        self.aborted_tokens = 0
        self._next_abort = 0  # index of the next entry of ``aborts``
        self.run = FastForward()
        self.over_at = 0
        self.events.begun(scheduler)
        self._looks = any(type(each).next_look is not Observer.next_look for each in observers)
        self._tells_growth = any(type(each).advanced is not Observer.advanced for each in observers)

    # Driving it

    def replay(self) -> None:
        """Replay all of the scheduler's arrivals on a separate clock.

        Raises:
            PagesimError: the simulated time exceeds what the clock can count.
        """
        environment = simpy.Environment()
        drive(environment, self)
        environment.run()
        self.end()

    def decide(self, now: int) -> bool:
        """Decide what happens from ``now`` until ``over_at``.

        Returns:
            Whether anything happens; if not, no request is running or waiting.
        """
        scheduler, in_flight, copies, run = self.scheduler, self._in_flight, self.copies, self.run
        if scheduler.queue.next_arrival <= now or self.aborts:
            self.settle(now)
        if copies is not None:
            copies.advance(now)  # moves between tiers proceed independently of the engine
        run.steps, run.decided = 0, now
        if self.fast_forward and self._fast_forwards(now):
            return True
        batch = self._plan(now)
        begun, now = now, scheduler.decided_at(now)
        if batch is None:
            self._hold_up(begun, now)
            return self._has_nothing(now)
        is_empty, transfers = not (batch.tokens or batch.launches), batch.transfers
        naps = is_empty and (self._ahead > 0 or transfers is not None)
        ticks = 0 if is_empty and self._ahead else self.executor.execute(batch)
        launched = busy = now
        if in_flight and in_flight[-1][0] > now:
            busy = in_flight[-1][0]
        if copies is not None and transfers is not None:
            launched = copies.before(transfers, now, busy)
        self._hold_up(begun, launched)
        start = launched if is_empty or launched > busy else busy
        end = start + ticks
        if self.pipeline is not None:
            start, end = self.pipeline.run(batch, launched, ticks)
        end = scheduler.launched(end)
        self.events.planned(batch, now, start, end - start)
        arrived: Sequence[Job] = ()
        if copies is not None and transfers is not None:
            arrived = copies.after(transfers, launched, max(busy, end), naps=naps)
            self._due = 0 if arrived or any(jobs for _, jobs in in_flight) else copies.due
        in_flight.append((end, arrived))
        self._is_settled = batch.tokens > 0
        if len(in_flight) == scheduler.in_flight or not (batch.tokens or scheduler.has_work):
            self._wait(launched, naps=naps)
        else:
            self.waits, self._naps = False, naps
            self.over_at = launched
        if self.fast_forward and not self._ahead:
            # What follows this batch may be known already; then one decision covers both.
            steps = scheduler.steps_until_next_decision()
            if steps > 0:
                self._fast_forward(steps, end, end)
        return True

    def complete(self, now: int) -> int:
        """Complete the last decision at ``over_at``; return when to make the next one."""
        run, scheduler, in_flight, copies = self.run, self.scheduler, self._in_flight, self.copies
        arrived: Sequence[Job] = ()
        if run.steps:
            self.events.fast_forwarded(run)
            scheduler.advance(run.steps)
            scheduler.launched(run.end)
            if self._tells_growth:
                self.events.advanced(run)
            in_flight.clear()
            learned = () if copies is None else self._learned(copies)
            if not self._ahead:
                arrived = learned
            else:
                in_flight.append((run.end, learned))
        elif self.waits:
            arrived = in_flight.popleft()[1]
        else:
            return now + NAP if self._naps and scheduler.has_work else now
        if self.aborts and scheduler.drops_last_token:
            self.settle(now)
        if run.steps and self._ahead and not run.draining:
            return now
        over = scheduler.finish(now)
        if over or not self._ahead:
            self._is_settled = False
        if copies is not None and arrived:
            scheduler.transferred(arrived)
            if not self._ahead:
                self._due = copies.due  # of the remaining copies
        return now + NAP if self._naps and scheduler.has_work else now

    def end(self, ends: Sequence[int] = ()) -> None:
        """Stop deciding and flush the recorder; ``ends`` are when the batches in flight finish."""
        for over_at in ends or [own for own, _ in self._in_flight]:
            self.scheduler.start_draining()
            self.scheduler.finish(over_at)
        self._in_flight.clear()
        self.recorder.flush()
        # Otherwise the observers would keep the engine and all arrivals alive until a garbage collection.
        self.scheduler.events = self.events = Observer()

    def replan_at(self, instant: int) -> int:
        """Cut the fast-forward so that no step is decided from then on; return the new ``over_at``."""
        run = self.run
        if run.steps:
            kept = steps_before(run.first, run.increment, instant - run.start)
            if self._ahead:
                kept = 1 + kept if self._first_at < instant else 0
            if kept < run.steps:
                run.steps = kept
                run.end = run.start + span_of(run.first, run.increment, kept)
                self._end_run()
        elif not self._in_flight:  # requests are waiting for a copy
            self.over_at = min(self.over_at, instant)
        return self.over_at

    def abort_at(self, instant: int, row: int) -> None:
        """Schedule a client's abort of its request at an instant, unless it has finished by then."""
        insort(self.aborts, (instant, row), lo=self._next_abort)

    def settle(self, now: int) -> bool:
        """Enqueue the requests that have arrived, then apply aborts; return whether any were due."""
        queue = self.scheduler.queue
        if queue.next_arrival <= now:
            if self.scheduler.arrival_matters():
                self._is_settled = False
            queue.arrive(now)
        before = self._next_abort
        if self.aborts:
            self._abort_until(now)
        if self._next_abort == before:
            return False
        self._is_settled = False
        return True

    @property
    def next_abort(self) -> int:
        """When the next client aborts a request that may be unfinished, in ticks; ``NEVER`` if none does."""
        return self.aborts[self._next_abort][0] if self._next_abort < len(self.aborts) else NEVER

    # Inside

    def _plan(self, now: int) -> Batch | None:
        """Return the next batch; None if there is nothing to do."""
        scheduler = self.scheduler
        if self._ahead and not (scheduler.running or scheduler.has_work):
            return None
        while True:
            batch = scheduler.plan(now)
            gives_up = batch.unschedulable or batch.ignored or batch.never_freed
            if batch.recomputed or batch.swapped_out or gives_up:
                self.events.departed(batch, now)
                if gives_up:
                    self._give_up(batch, now)
            if batch.tokens or batch.launches or (not self._ahead and batch.is_iteration):
                return batch
            if self._ahead:
                if not (scheduler.empty_turns or (batch.unschedulable and not self._in_flight)):
                    return None
                if not batch.unschedulable:
                    return batch
            elif scheduler.has_work and batch.transfers is not None:
                return batch  # the loop keeps turning as long as any copy is under way
            elif not (batch.recomputed or batch.unschedulable):
                return None
            # If memory was freed, a waiting request may be admitted at the same instant.

    def _hold_up(self, begun: int, until: int) -> None:
        """Report the oldest result as held up if the plan waited for copies beyond its end."""
        if begun < until and self._in_flight and self._in_flight[0][0] < until and not self._naps:
            self.events.held_up(self._in_flight[0][0], until)

    def _has_nothing(self, now: int) -> bool:
        """Wait for the oldest batch in flight, or for a copy; return False if there is nothing to await."""
        if not self._in_flight:
            wakes_at, next_arrival = self.scheduler.wakes_at, self.scheduler.queue.next_arrival
            if wakes_at < NEVER:
                self.waits = self._naps = False
                self.over_at = max(now, min(wakes_at, next_arrival, self.next_abort))
                return True
            self.scheduler.ran_dry()
            self.events.idle(now, next_arrival)
            return False
        self._wait(now, naps=self.scheduler.empty_turns)
        return True

    def _wait(self, now: int, *, naps: bool) -> None:
        """End the current turn when the oldest batch in flight finishes."""
        self.waits, self._naps = True, naps
        self.over_at = max(self._in_flight[0][0], now)

    def _learned(self, copies: TierCopies) -> Sequence[Job]:
        """Return the finished jobs that the last iteration of the current fast-forward learns of."""
        run = self.run
        before = run.steps - 1 - self._ahead
        last = self._first_at if before < 0 else run.start + span_of(run.first, run.increment, before)
        if self._due > last:
            return ()
        self._due = 0
        return copies.finished_by(last)

    def _fast_forwards(self, now: int) -> bool:
        """Fast-forward over the next iterations if possible; return whether it was."""
        scheduler, in_flight = self.scheduler, self._in_flight
        if self._naps or (self._ahead and not in_flight):
            return False
        if not self._is_settled and (scheduler.queue.waiting or scheduler.swapped):
            return False
        steps = scheduler.steps_until_next_decision()
        if steps <= 0:
            if not self._ahead or scheduler.queue.waiting or scheduler.must_replan:
                return False
            scheduler.start_draining()
            steps = min(scheduler.steps_until_next_decision(), 1)
        self._fast_forward(steps, now, in_flight[-1][0] if in_flight else now)
        return self.run.steps > 0

    def _fast_forward(self, steps: int, now: int, start: int) -> None:
        """Set ``run`` to the upcoming iterations that decode the same requests and decide nothing.

        Args:
            steps: the number that the scheduler allows if nothing happens outside it.
            now: when the first of them would be decided, in ticks.
            start: when the first of them would start running, in ticks.
        """
        scheduler, run, ahead = self.scheduler, self.run, self._ahead
        arrival = scheduler.queue.next_arrival
        if steps <= 0 or arrival <= run.decided:
            return  # a request sent while the plan was made is not in the queue yet
        draining = scheduler.draining
        sequences = scheduler.running_sequences - draining
        context = scheduler.context - scheduler.draining_context + sequences
        decode_run = self.executor.decode_run(sequences, context)
        if decode_run is None:
            return
        first, increment, linear = decode_run
        steps = min(steps, linear)
        end = start + steps * first + increment * (steps * (steps - 1) >> 1)
        # From the horizon on, every iteration must be planned.
        horizon = self.until + 1
        if self._due < end:
            # The iteration that learns that a copy has finished is the last that can be skipped.
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
            steps = min(steps, before)
            end = start + steps * first + increment * (steps * (steps - 1) >> 1)
        run.start = start
        run.steps = steps
        run.first, run.increment = first, increment
        run.context, run.sequences = context, sequences
        run.draining = draining
        run.end = end
        self._first_at = now
        self._end_run()

    def _end_run(self) -> None:
        """Set ``over_at`` to when the iteration after the fast-forward is decided."""
        run = self.run
        self.over_at = run.end
        if self._ahead:  # the last step is still in flight then
            last = run.first + run.increment * (run.steps - 1)
            self.over_at = run.end - last if run.steps else self._first_at

    def _abort_until(self, now: int) -> None:
        """Apply the aborts that are due, and skip those of finished requests, up to the next real one."""
        aborts, status = self.aborts, self.recorder.log.status
        while self._next_abort < len(aborts):
            when, row = aborts[self._next_abort]
            waits_or_runs = status[row] == Status.UNFINISHED
            if waits_or_runs and when > min(now, self.until):
                return
            self._next_abort += 1
            if waits_or_runs:
                self.aborted_tokens += self.scheduler.abort(row, now)
                self.events.left(row, now, Status.ABORTED)
                self.scheduler.queue.arrive(now)  # the abort may let a client send its next request

    def _give_up(self, batch: Batch, now: int) -> None:
        """Record the requests that were given up while the batch was planned."""
        leaks = [(request, FailureMode.LEAK) for request in batch.never_freed]
        for request, failure_mode in (*batch.unschedulable, *leaks):
            if self.strict_compat:
                raise StrictCompatError(failure_mode, request.row, now)
            self.failure_modes[failure_mode] += 1
        for request, _ in batch.unschedulable:
            self.events.left(request.row, now, Status.UNSCHEDULABLE)
        for request in batch.ignored:
            self.events.left(request.row, now, Status.IGNORED)

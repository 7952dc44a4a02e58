"""The pipelined engine: the next batch is scheduled while the one before it runs.

Source: vLLM 0.33.0, v1/engine/core.py, ``EngineCore.step_with_batch_queue``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from pagesim.scheduling.arrivals import NEVER
from pagesim.scheduling.offload.jobs import Job
from pagesim.setup.compiled import mypyc_attr
from pagesim.sim.clock import span_of, steps_before
from pagesim.sim.engine import NAP, Engine


@mypyc_attr(allow_interpreted_subclasses=True)
class PipelinedEngine(Engine):
    """Runs a scheduler that decides ahead: ``Scheduler.in_flight`` batches at most are in flight.

    One turn of its loop schedules a batch, and then waits for the oldest one in flight if there are as many
    as there may be, or if there is nothing else to do. So an iteration is decided when the one before the one
    before it is over, and begins when the one before it is. A schedule may be empty; that is an iteration of
    no length, which is in flight as any other.
    """

    __slots__ = ("_first_at", "_forwards", "_in_flight", "_is_settled", "_waits")

    def _prepare(self) -> None:
        # When each batch in flight is over, and the jobs that were over when it was launched.
        self._in_flight: deque[tuple[int, Sequence[Job]]] = deque()
        self._waits = False  # whether the turn at hand waits for the oldest of them
        # Where more than two are in flight each iteration is planned.
        self._forwards = self.fast_forward and self.scheduler.in_flight == 2
        self._first_at = 0  # when the first step of the fast-forward at hand is decided
        # Whether the next iteration can only do what the one in flight does: requests that wait were looked
        # at, and none has arrived or gone since that could change what became of them.
        self._is_settled = False

    def decide(self, now: int) -> bool:
        scheduler, in_flight = self.scheduler, self._in_flight
        if scheduler.queue.next_arrival <= now or self.aborts:
            self._let_in(now)
        copies = self.copies
        if copies is not None:
            copies.advance(now)
        run = self.run
        run.steps, run.decided = 0, now
        if not (scheduler.running or scheduler.has_work):
            return self._has_nothing(now)
        if self._forwards and self._fast_forwards(now):
            return True
        while True:
            batch = scheduler.plan(now)
            if batch.recomputed or batch.stuck:
                self.events.departed(batch, now)
                self._give_up(batch, now)
            if batch.tokens or not batch.stuck or not scheduler.empty_turns:
                break
        is_empty, transfers = not batch.tokens, batch.transfers
        if is_empty and not scheduler.empty_turns:
            return self._has_nothing(now)
        ticks = 0 if is_empty else self.executor.execute(batch)
        launched = busy = now
        if in_flight and in_flight[-1][0] > now:
            busy = in_flight[-1][0]
        if copies is not None and transfers is not None:
            launched = copies.before(transfers, now, busy)
        if in_flight and launched > in_flight[0][0] and not self._naps:
            self.events.held_up(in_flight[0][0], launched)
        start = launched if is_empty or launched > busy else busy
        end = start + ticks
        self.events.planned(batch, now, start, ticks)
        arrived: Sequence[Job] = ()
        if copies is not None and transfers is not None:
            arrived = copies.after(transfers, launched, max(busy, end), naps=is_empty)
        in_flight.append((end, arrived))
        if copies is not None and transfers is not None:
            self._due = 0 if any(jobs for _, jobs in in_flight) else copies.due
        self._is_settled = not is_empty
        if len(in_flight) == scheduler.in_flight or not (batch.tokens or scheduler.has_work):
            self._wait(launched, naps=is_empty)
        else:
            self._waits, self._naps = False, is_empty
            self.over_at = launched
        return True

    def complete(self, now: int) -> int:
        run, scheduler = self.run, self.scheduler
        arrived: Sequence[Job] = ()
        if run.steps:
            in_flight = self._in_flight
            self.events.fast_forwarded(run)
            scheduler.advance(run.steps)
            if self._tells_growth:
                self.events.advanced(run)
            in_flight.clear()
            in_flight.append((run.end, () if self._due == NEVER else self._learned()))
            if not run.resting:
                return now
        elif self._waits:
            arrived = self._in_flight.popleft()[1]
        else:
            return now + NAP if self._naps and scheduler.has_work else now
        if self.aborts and scheduler.drops_last_token:
            self._let_in(now)
        if scheduler.finish(now):
            self._is_settled = False
        if arrived:
            scheduler.transferred(arrived)
        return now + NAP if self._naps and scheduler.has_work else now

    def end(self) -> None:
        for over_at, _ in self._in_flight:
            self.scheduler.let_ending_rest()
            self.scheduler.finish(over_at)
        super().end()

    def replan_at(self, instant: int) -> int:
        run = self.run
        if run.steps:
            kept = 0
            if self._first_at < instant:
                kept = 1 + steps_before(run.first, run.increment, instant - run.start)
            if kept < run.steps:
                run.steps = kept
                self.over_at = self._first_at
                if kept:
                    run.end = run.start + span_of(run.first, run.increment, kept)
                    self.over_at = run.end - (run.first + run.increment * (kept - 1))
        return self.over_at

    def _learned(self) -> Sequence[Job]:
        """Return the jobs of whose end the last iteration of the fast-forward at hand learns."""
        run = self.run
        last = (
            run.start + span_of(run.first, run.increment, run.steps - 2) if run.steps > 1 else self._first_at
        )
        if self._due > last:
            return ()
        self._due = 0
        return () if self.copies is None else self.copies.over_by(last)

    def _let_in(self, now: int) -> None:
        queue = self.scheduler.queue
        if queue.next_arrival <= now:
            if self.scheduler.arrival_matters():
                self._is_settled = False
            queue.arrive(now)
        if self.aborts:
            past = self._next_abort
            self._abort_until(now)
            if self._next_abort > past:
                self._is_settled = False

    def _has_nothing(self, now: int) -> bool:
        """Wait for the oldest batch in flight where nothing is scheduled; say whether there is one."""
        if not self._in_flight:
            self.scheduler.ran_dry()
            self.events.idle(now, self.scheduler.queue.next_arrival)
            return False
        self._wait(now, naps=self.scheduler.empty_turns)
        return True

    def _wait(self, now: int, *, naps: bool) -> None:
        """Let the turn at hand end with the oldest batch in flight."""
        self._waits, self._naps = True, naps
        over_at = self._in_flight[0][0]
        self.over_at = over_at if over_at > now else now

    def _fast_forwards(self, now: int) -> bool:
        """Take the next iterations at once, if that can be; say whether it could."""
        scheduler, in_flight = self.scheduler, self._in_flight
        if self._naps or not in_flight:
            return False
        if not self._is_settled and (scheduler.queue.waiting or scheduler.swapped):
            return False
        steps = scheduler.steps_until_next_decision()
        if steps <= 0:
            if scheduler.queue.waiting or scheduler.must_replan:
                return False
            scheduler.let_ending_rest()
            steps = min(scheduler.steps_until_next_decision(), 1)
        self._first_at = now
        self._fast_forward(steps, now, in_flight[-1][0], 1)
        return self.run.steps > 0

"""The engine: replays arrivals through a scheduler on a simulated clock. The only SimPy in the house.

One turn of its loop is one decision: the scheduler plans an iteration, the executor says how long it takes,
and where the scheduler knows that nothing can change for a while the engine leaps over the iterations that
follow. A leap is never an approximation: the records, iteration by iteration, are those of stepping.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from typing import Any

import simpy

from pagesim.accounting.records import Recorder, Status
from pagesim.errors import PagesimError
from pagesim.scheduling import DeadEnd, Plan, Scheduler
from pagesim.sim.clock import LONGEST_S, TICKS_PER_SECOND, span_of, steps_before
from pagesim.sim.executors import Executor, PredictedExecutor
from pagesim.sim.express import HAND_OVER, IDLE, Lane, hand_over, lane_for, take_over

STAY = (0, 0, 0, 0)
"""No leap: the next iteration is planned."""

AGAIN = -3
"""In the place of ticks: nothing happened, and another decision is due."""

REST = 4
"""Decisions that the scheduler takes itself before a lane takes over again."""


class StrictCompatError(Exception):
    """The real engine goes no further: which dead end, which request (its row), when (ticks)."""

    def __init__(self, dead_end: DeadEnd, row: int, now: int) -> None:
        super().__init__(dead_end, row, now)
        self.dead_end = dead_end
        self.row = row
        self.now = now


class Engine:
    """Runs one scheduler to the end.

    Args:
        scheduler: with its memory and its arrivals.
        executor: what an iteration takes.
        recorder: what is written down.
        leap: whether iterations that decide nothing are taken at once; without, each is planned.
        until: no iteration is scheduled after this instant, in ticks; None for no end.
        aborts: when whose client goes away unless the request is over: (ticks, row of the trace), in order.
        strict_compat: whether to stop, with `StrictCompatError`, where the real engine hangs, leaks or dies.
        watch: called with the number of requests that are over, for a progress bar.

    Attributes:
        dead_ends: how often a request met one, and which.
    """

    can_be_cut = False
    """Whether time that passes may turn out to be shorter, because of requests that nobody knew of."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        recorder: Recorder,
        *,
        leap: bool = True,
        until: int | None = None,
        aborts: Sequence[tuple[int, int]] = (),
        strict_compat: bool = False,
        watch: Callable[[int], None] | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.recorder = recorder
        self.leap = leap
        self.until = int(LONGEST_S) * TICKS_PER_SECOND if until is None else until
        self.strict_compat = strict_compat
        self.watch = watch
        self.counts_over = watch is not None  # whether anybody hears of requests that are over
        self.dead_ends: Counter[DeadEnd] = Counter()
        self.aborts = list(aborts)
        self.aborted_tokens = 0
        self._abort = 0  # the next one of them
        self._decision: list[int] = []  # what is written down of the iterations that time passes for
        self.ahead = STAY  # those of them that follow the first
        self.ahead_start = 0
        self.lead = 0  # 1 if the first is yet to be carried out, too
        self.lane: Lane | None = None
        if leap and not self.aborts and type(executor) is PredictedExecutor:
            self.lane = lane_for(scheduler, recorder, executor.cost, self.until)
        self._rest = 0
        self.over = 0
        self._ends_early = until is not None

    def run(self) -> None:
        """Replay everything.

        Raises:
            PagesimError: the simulated time exceeds what the clock can count.
        """
        environment = simpy.Environment()
        environment.process(self.serve(environment))
        environment.run()
        self.flush()

    def flush(self) -> None:
        """Hand on all that was written down."""
        if self.lane is not None and self.lane.active:
            self.lane.settle()
        self.recorder.flush()

    def serve(self, environment: simpy.Environment) -> Generator[simpy.Event, Any, None]:
        """Return the process that replays everything in this environment."""
        recorder = self.recorder
        now = 0
        while now <= self.until:
            if self.aborts:
                self._let_go(now)
            lane = self.lane
            if lane is None or not lane.active:
                ticks = self._decide(now)
            else:
                now, ticks = self._drive(lane, now, 0 if self.can_be_cut else environment.peek())
                if ticks == HAND_OVER:
                    hand_over(lane)
                    self._rest = REST
                    continue
            if ticks == IDLE:
                if now > environment.now:
                    yield environment.timeout(now - environment.now)
                yield from self._idle(environment)
                if self.front.next_arrival is None:
                    return
                now = int(environment.now)
            elif ticks >= 0:
                if self.can_be_cut:
                    yield from self._pass(environment, ticks)
                    now = int(environment.now)
                else:
                    now += ticks
                    # Where nobody else acts meanwhile, nobody need hear of it: the clock follows later.
                    if environment.peek() <= now:
                        yield environment.timeout(now - environment.now)
                lane = self.lane
                if lane is None or not lane.active:
                    self._end(now)
                elif over := lane.end(now):
                    self._count_over(over)
                if recorder.iterations >= recorder.full_at:
                    self.flush()
        if not self._ends_early:
            raise PagesimError(
                f"the run exceeds {LONGEST_S:g} s of simulated time; replay fewer requests or set until"
            )

    @property
    def front(self) -> Lane | Scheduler:
        """Who keeps the queue: the lane, or the scheduler itself."""
        return self.lane if self.lane is not None and self.lane.active else self.scheduler

    @property
    def turn(self) -> Lane | Engine:
        """Who knows what the iterations at hand are: the lane, or the engine itself."""
        return self.lane if self.lane is not None and self.lane.active else self

    @property
    def held(self) -> int:
        """Tokens that those who run hold in the iteration at hand."""
        scheduler = self.scheduler
        return scheduler.next_context - (0 if self.lead else scheduler.running_sequences)

    def _drive(self, lane: Lane, now: int, horizon: float) -> tuple[int, int]:
        """Let the lane decide as long as what it decides is over before the horizon.

        Returns:
            When that is no longer so, and the ticks that what it began then takes; or IDLE or HAND_OVER.
        """
        begin, end, recorder, ignored = lane.begin, lane.end, self.recorder, lane.ignored
        before, counts_over = min(horizon, self.until + 1), self.counts_over
        while True:
            over_at = begin(now)
            if ignored:
                self._count_over(ignored)
                ignored.clear()
            if over_at < 0 or over_at >= before:
                return now, over_at if over_at < 0 else over_at - now
            now = over_at
            over = end(now)
            if over and counts_over:
                self._count_over(over)
            if recorder.iterations >= recorder.full_at:
                self.flush()

    def cut(self, steps: int) -> None:
        """Let the leap at hand be so many steps, fewer than it is."""
        self.ahead = (steps, *self.ahead[1:]) if steps else STAY

    def _decide(self, now: int) -> int:
        """Decide what happens from ``now`` on.

        Returns:
            The ticks that it takes; or IDLE; or AGAIN if the next decision is due at the same instant.
        """
        if self._rest:
            self._rest -= 1
        elif self.lane is not None and take_over(self.lane):
            return AGAIN
        further = self._go_on(now) if self.leap else None
        if further is not None:
            return further
        plan = self.scheduler.plan(now)
        if plan.is_iteration:
            return self._iterate(plan, now)
        self._note_departures(plan, now)
        # Where memory was given back, whoever waits may be admitted at the same instant.
        return AGAIN if plan.recomputed or plan.stuck else IDLE

    def _end(self, now: int) -> None:
        """The iterations that were decided are over."""
        scheduler, recorder = self.scheduler, self.recorder
        steps = self.lead + self.ahead[0]
        if steps:
            scheduler.advance(steps)
        recorder.decide(self._decision, self.ahead)
        for group in scheduler.finish():
            recorder.end(group, now)
            if not group.samples:
                self._count_over([group.row])

    def _go_on(self, now: int) -> int | None:
        """Take the iterations from ``now`` on in which everybody who runs just goes on, without a plan.

        What is written down is what planning the first of them and leaping over the others would.

        Returns:
            The ticks of all of them; None if the next iteration must be planned.
        """
        scheduler = self.scheduler
        steps = scheduler.undisturbed(now)
        if steps <= 0 or self.recorder.stalled_since is not None:
            return None
        sequences, context = scheduler.running_sequences, scheduler.next_context
        run = self.executor.decode_run(sequences, context)
        if run is None:
            return None
        first, increment, linear = run
        steps = self._bounded(min(steps, linear), first, increment, now)
        free, free_cpu, shared, cached, taken = scheduler.memory.accounts(1)
        self._decision = [
            self.recorder.iterations,
            now,
            first,
            scheduler.memory.steps_grown + 1,
            scheduler.running_groups,
            sequences,
            0,  # swapped
            scheduler.waiting,
            free,
            free_cpu,
            sequences,  # batched_tokens, tokens
            sequences,
            context,
            *(0, 0, 0, 0),  # swapped_in, swapped_out, copied, preempted
            free if scheduler.blocked_externally() else 0,
            sequences,
            shared,
            *(0, 0),  # shared_slack, shared_rounding
            cached,
            taken,
        ]
        self.lead = 1
        self.ahead_start = now + first
        self.ahead = (steps - 1, first + increment, increment, context + sequences) if steps > 1 else STAY
        return span_of(first, increment, steps)

    def _pass(self, environment: simpy.Environment, ticks: int) -> Generator[simpy.Event, Any, None]:
        """Let the time of the iterations at hand pass, unless it is cut short."""
        yield environment.timeout(ticks)

    def _idle(self, environment: simpy.Environment) -> Generator[simpy.Event, Any, None]:
        """Wait for the next arrival; if there is none, return at once."""
        arrival = self.front.next_arrival
        if arrival is not None:
            yield environment.timeout(arrival - environment.now)

    def _iterate(self, plan: Plan, now: int) -> int:
        """Carry out a planned iteration and those that follow without a decision; return the ticks of all."""
        scheduler, recorder, memory = self.scheduler, self.recorder, self.scheduler.memory
        ticks = self.executor.execute(plan)
        end = now + ticks
        preempted = len(plan.recomputed) + len(plan.swapped_out)
        if preempted or plan.stuck or plan.ignored or plan.leaked:
            self._note_departures(plan, now)
        for group in plan.rebased:
            recorder.rebase(group)
        if not plan.decodes:
            recorder.stall(now)
        stood_still = recorder.stalled_since is not None
        if stood_still and plan.decodes:
            recorder.go_on((group for group in scheduler.running() if group not in plan.resumed), now, end)
        continuing = plan.decoding
        for group in plan.prompts:
            recorder.enter(group, now, None if plan.incomplete and group in plan.incomplete else end)
        for group in plan.resumed:
            recorder.enter(group, now, end)
            continuing -= group.samples
        for group in plan.skipped:
            recorder.skip(group, now)
        for group in plan.completed:
            recorder.answer(group, end)
        for group in plan.caught_up:
            recorder.answer(group, end)
            continuing -= group.samples
        free, free_cpu, shared, cached, taken = memory.accounts()
        self._decision = [
            recorder.iterations,
            now,
            ticks,
            memory.steps_grown,
            scheduler.running_groups,
            plan.sequences,
            scheduler.swapped,
            scheduler.waiting,
            free,
            free_cpu,
            plan.batched_tokens,
            plan.tokens,
            plan.context_tokens,
            len(plan.swaps_in),
            len(plan.swaps_out),
            len(plan.copies),
            preempted,
            free if scheduler.blocked_externally() else 0,
            0 if stood_still else continuing,
            shared,
            *(self._shared_tails() if memory.sharing_tails else (0, 0)),
            cached,
            taken,
        ]
        self.lead = 0
        self.ahead_start = end
        self.ahead = self._plan_leap(end) if self.leap else STAY
        steps, first, increment, _ = self.ahead
        return ticks + span_of(first, increment, steps)

    def _plan_leap(self, start: int) -> tuple[int, int, int, int]:
        """Say which iterations from ``start`` ticks on decode with the same sequences and decide nothing.

        Returns:
            What `Recorder.decide` writes down of them.
        """
        scheduler = self.scheduler
        steps = scheduler.steady()
        if steps <= 0 or start > self.until:
            return STAY
        context = scheduler.next_context
        run = self.executor.decode_run(scheduler.running_sequences, context)
        if run is None:
            return STAY
        first, increment, linear = run
        steps = self._bounded(min(steps, linear), first, increment, start)
        return (steps, first, increment, context) if steps > 0 else STAY

    def _bounded(self, steps: int, first: int, increment: int, start: int) -> int:
        """Return how many of these steps start before anything from outside must be looked at."""
        if self.scheduler.arrival_matters:
            arrival = self.scheduler.next_arrival
            if arrival is not None and span_of(first, increment, steps) > arrival - start:
                # The first iteration that starts at or after the arrival must be planned.
                steps = min(steps, steps_before(first, increment, arrival - start))
        if self._abort < len(self.aborts):
            steps = min(steps, steps_before(first, increment, self.aborts[self._abort][0] - start))
        if self._ends_early:
            steps = min(steps, steps_before(first, increment, self.until - start + 1))
        return steps

    def _let_go(self, now: int) -> None:
        """Let those go whose clients went away by now; leave the next such instant for the leaps."""
        if self.lane is not None:
            if self.lane.active:
                hand_over(self.lane)
            self.lane = None
        while self._abort < len(self.aborts):
            when, row = self.aborts[self._abort]
            waits_or_runs = self.recorder.status[row] == Status.UNFINISHED
            if waits_or_runs and when > now:
                return
            self._abort += 1
            if waits_or_runs:
                self.aborted_tokens += self.scheduler.abort(row, now)
                self.recorder.leave(row, now, Status.ABORTED)
                self._count_over([row])

    def _note_departures(self, plan: Plan, now: int) -> None:
        """Write down who lost memory or was given up while the plan was made."""
        for group in plan.recomputed:
            self.recorder.preempt(group, now, swapped=False)
        for group in plan.swapped_out:
            self.recorder.preempt(group, now, swapped=True)
        for choice in plan.choices:
            self.recorder.choose(choice, now)
        for group, dead_end in plan.stuck:
            self._meet(dead_end, group.row, now)
            self.recorder.leave(group.row, now, Status.STUCK)
            self._count_over([group.row])
        for group in plan.leaked:
            self._meet(DeadEnd.LEAK, group.row, now)
        for group in plan.ignored:
            self.recorder.leave(group.row, now, Status.IGNORED)
            self._count_over([group.row])

    def _meet(self, dead_end: DeadEnd, row: int, now: int) -> None:
        if self.strict_compat:
            raise StrictCompatError(dead_end, row, now)
        self.dead_ends[dead_end] += 1

    def _shared_tails(self) -> tuple[int, int]:
        """Return what last blocks that several sequences share hold too often: see `ledger.Sharing`."""
        memory, size = self.scheduler.memory, self.scheduler.memory.block_size
        slack = rounding = 0
        for group in self.scheduler.running():
            if copies := memory.copies_due(group.sequences):
                held = group.base + memory.steps_grown
                end = held + -held % size
                slack += copies * (end - held)
                lost = sorted(max(0, end - final) for final in group.finals)
                # Samples of different lengths all share one block, which the longest fills most.
                rounding += sum(lost[-copies:])
        return slack, rounding

    def _count_over(self, rows: Sequence[int]) -> None:
        """Note that requests are over."""
        self.over += len(rows)
        if self.watch is not None:
            self.watch(self.over)

"""What the lanes share: the state of plain requests in numbers, growth, preemption, leaps and records.

A request is *plain* where it is one sequence whose memory is paged on demand, is recomputed when it is
preempted and shares nothing. What runs is then a dict of numbers, and a decision is thirty lines instead of
fifty calls. What is not plain (swaps, dead ends, aborts) is left to the scheduler: at a decision either hands
its state to the other (`pagesim.sim.express.handing`). Both decide alike, which
``tests/sim/test_express_lanes.py`` checks on random runs. Code that is asked at every decision is written
out here rather than called.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left, bisect_right, insort
from itertools import accumulate

import numpy as np

from pagesim.accounting.records import LEAP_FIELDS, Recorder, Status
from pagesim.costs import CostModel, IterationShape
from pagesim.kvcache import PagedAllocator
from pagesim.scheduling import Group, Preemptive
from pagesim.sim.clock import steps_before
from pagesim.sim.express.notes import FIELDS, as_rows
from pagesim.sim.express.waiting import Waiting

IDLE, HAND_OVER = -1, -2
"""In the place of ticks: nobody is here; what comes next is not plain."""

LEAP = -len(LEAP_FIELDS)
"""Where, in what is written down of a decision, its leap begins."""

_STAY = (0, 0, 0, 0, 0)
NOBODY: list[int] = []

_FINISHED = int(Status.FINISHED)

# What a named tuple's own constructor ends in; that is a function more at every decision.
new_tuple = tuple.__new__


class Lane(Waiting, ABC):
    """Decides as a scheduler does, for as long as everything is plain. For who waits, see `Waiting`.

    A subclass makes the plan of an iteration. Requests are known by their index among the arrivals.

    Args:
        scheduler: whose decisions these are, and with whose memory; it stands still meanwhile.
        recorder: what is written down.
        cost: of the iterations.
        until: no iteration of a leap starts after this instant, in ticks.

    Attributes:
        active: whether the lane decides, or the scheduler.
        running: base, first iteration and last step of each request that runs, in the order of admission; the
            *base* is the length less ``steps``, the steps of growth that memory has taken.
        due: as the allocator's: how many need a block at which step.
        ending: those who run and decode, by the step at which they are over, the first of them last: pairs of
            that step, negative, and a request.
        free: blocks that nobody holds.
        context: tokens that those who run hold.
        restless: whether the next iteration must be planned, whatever it does.
        lead: 1 if that iteration is carried out with the leap, 0 if it was when it was planned.
        ignored: rows of requests that were dropped since somebody last looked.
        batched, tokens, pairs, decoding, context_tokens, decode_context, preempted: of the plan at hand, as
            `Plan` and ``DECISION_FIELDS`` have them.
    """

    # Slots are found faster than what stands in a dict, and these are looked up at every decision.
    __slots__ = (
        "_decision",
        "_decisions",
        "_stays",
        "active",
        "batched",
        "context",
        "context_tokens",
        "cost",
        "decode",
        "decode_context",
        "decoding",
        "due",
        "ending",
        "free",
        "ignored",
        "lead",
        "memory",
        "output",
        "pairs",
        "preempted",
        "recorder",
        "restless",
        "running",
        "scheduler",
        "size",
        "steps",
        "tokens",
        "watermark",
    )

    stalls = False
    """Whether those who run stand still while prompts are computed."""

    spare = 0
    """Blocks that must be free after a step for everybody to go on undisturbed."""

    counts_memory = True
    """Whether blocks are only counted here, or held and given back in memory itself."""

    fields: tuple[str, ...] = FIELDS
    """What is written down of a decision, ``LEAP_FIELDS`` last."""

    def __init__(self, scheduler: Preemptive, recorder: Recorder, cost: CostModel, until: int) -> None:
        super().__init__(scheduler.queue.arrivals, until)
        memory = scheduler.memory
        assert isinstance(memory, PagedAllocator)
        self.scheduler = scheduler
        self.recorder = recorder
        self.cost, self.decode = cost, cost.decode
        self.memory = memory
        self.size = memory.block_size
        self.output = scheduler.queue.arrivals.output
        self.watermark = scheduler.watermark_blocks
        self.active = False
        self.running: dict[int, tuple[int, int, int]] = {}
        self.due = [0] * (2 * self.size)
        self.ending: list[tuple[int, int]] = []
        self.steps = self.free = self.context = 0
        self.restless = False
        self.lead = 0
        self.ignored: list[int] = []
        self.batched = self.tokens = self.pairs = self.decoding = self.preempted = 0
        self.context_tokens = self.decode_context = 0
        self._decision: list[int] = []
        self._decisions = array("q")
        self._stays = array("q")

    @classmethod
    def carries(cls, scheduler: Preemptive) -> bool:
        """Say whether the requests that a scheduler expects are of the kind that this lane decides about."""
        memory = scheduler.memory
        return (
            type(memory) is PagedAllocator
            and memory.grows_on_demand
            and scheduler.queue.arrivals.widest == 1
            and (scheduler.preemption in ("default", "recompute") or not memory.shares)
        )

    # What the engine asks

    @property
    def running_sequences(self) -> int:
        """How many run."""
        return len(self.running)

    @property
    def held(self) -> int:
        """Tokens that those who run hold in the iteration at hand."""
        return self.context + self.lead * len(self.running)

    @property
    def ahead(self) -> tuple[int, int, int, int]:
        """As ``LEAP_FIELDS``, the leap that follows the iteration at hand."""
        steps, first, increment, context = self._decision[LEAP:]
        return steps, first, increment, context

    @property
    def ahead_start(self) -> int:
        """When that leap begins, in ticks."""
        clock, ticks = self._decision[:2]
        return clock + ticks

    def begin(self, now: int) -> int:
        """Decide what happens from ``now`` on, as far as no further decision is due.

        Args:
            now: ticks.

        Returns:
            The ticks at which it is over; or IDLE, or HAND_OVER, and then nothing has changed.
        """
        if self.horizon <= now:
            self._arrive(now)
        if not self.waiting:
            sequences = len(self.running)
            if not sequences:
                return IDLE
            steps, first, increment, context, span = self._stretch(now, sequences)
            if steps:
                # Everybody who runs goes on, and nobody waits: no plan is needed.
                growth = self.steps + 1
                free = self.free - self.due[growth % self.size]
                self.lead = 1
                # fmt: off
                self._decision = [
                    now, first, growth, sequences, 0, free, sequences, sequences, context, 0, sequences,
                    steps - 1, first + increment, increment, context + sequences,
                ]
                # fmt: on
                return now + span
        self.pairs = self.preempted = 0
        entered = self._plan(now)
        return HAND_OVER if entered is None else self._iterate(now, entered)

    def cut(self, steps: int) -> None:
        """Let the leap at hand be so many steps, fewer than it is."""
        self._decision[LEAP] = steps

    def end(self, now: int) -> list[int]:
        """End what was begun; return the rows of the requests that are over."""
        recorder, running, ending = self.recorder, self.running, self.ending
        size, due, grown, decision = self.size, self.due, self.steps, self._decision
        leapt = decision[LEAP]
        steps = self.lead + leapt
        if steps:
            after = (grown + 1) % size
            self.free -= sum(due[after : after + steps]) if steps < size else self._demand(steps)
            self.steps = grown = grown + steps
            self.context += steps * len(running)
        self._decisions.fromlist(decision)
        recorder.iterations = iterations = recorder.iterations + 1 + leapt
        if not ending or ending[-1][0] + grown < 0:
            return NOBODY
        over = []
        finish, status = recorder.finish, recorder.status
        while True:
            _, index = ending.pop()
            base, first, last = running.pop(index)
            held = base + last
            self.context -= held
            self.free += -(-held // size)
            at = (1 - base) % size
            due[at] -= 1
            due[at + size] -= 1
            self._stays.fromlist([first, iterations - 1, base, held + 1])
            row = self.row[index]
            finish[row] = now
            status[row] = _FINISHED
            over.append(row)
            if not ending or ending[-1][0] + grown < 0:
                break
        if recorder.stalled_since is not None:
            recorder.forget(over)
        return over

    def settle(self) -> None:
        """Give the recorder all that was written down here; the stays of those who run begin anew."""
        recorder = self.recorder
        now = recorder.iterations
        for index, (base, first, last) in self.running.items():
            if first != now:
                self._stays.fromlist([first, now - 1, base, base + last + 1])
                self.running[index] = base, now, last
        free_cpu = self.memory.free_cpu_blocks
        rows = as_rows(self._decisions, self.fields, iterations=now, free_cpu_blocks=free_cpu)
        recorder.take(rows, np.array(self._stays, np.int64).reshape(-1, 4))
        self._decisions, self._stays = array("q"), array("q")

    # Between a scheduler and its lane: see `pagesim.sim.express.handing`

    def borrow(self, index: int, group: Group) -> None:
        """Take a running group over, and its memory."""
        self.scheduler.dismiss(group)

    def give_back(self, index: int) -> Group:
        """Give a running group back; return it."""
        base, _, _ = self.running[index]
        group = self.scheduler.queue.group_of(index)
        group.length = base + self.steps
        self.scheduler.readmit(group)
        return group

    def keep(self, index: int, group: Group) -> None:
        """Keep a group that waits, if it is not made anew when it is its turn."""
        return

    def kept(self, index: int) -> Group | None:
        """Return a group that waits, if it was kept."""
        return None

    # For subclasses

    @abstractmethod
    def _plan(self, now: int) -> list[int] | None:
        """Make the plan of the next iteration: grow, make room, admit.

        It leaves what is to be known of it in the attributes for that and in ``restless``; ``pairs`` and
        ``preempted`` are 0 before.

        Returns:
            The requests that were admitted; None if what comes next is not plain: then nothing has changed.
        """

    def _admit(self, index: int, length: int, blocks: int) -> None:
        """Take the head of the queue, of this length, out of it and let it run from this iteration on."""
        self._dequeue(index)
        steps = self.steps
        base = length - steps
        last = self.prompt[index] + self.output[index] - base - 1
        self.running[index] = base, self.recorder.iterations, last
        size, due = self.size, self.due
        self.context += length
        self.free -= blocks
        at = (1 - base) % size
        due[at] += 1
        due[at + size] += 1
        insort(self.ending, (-last, index))

    def _left(self) -> int:
        """Return the blocks that are free once everybody who runs has room for the token sampled last."""
        return self.free - self.due[(self.steps + 1) % self.size]

    def _grow(self, left: int) -> None:
        """Give everybody who runs that room; so many blocks are left."""
        self.steps += 1
        self.free = left
        self.decoding = sequences = len(self.running)
        self.context = self.decode_context = self.context + sequences

    def _only_decode(self) -> list[int]:
        """Say that nobody was admitted: what runs are those who grew; return that nobody was."""
        self.batched = self.tokens = self.decoding
        self.context_tokens = self.context
        return NOBODY

    def _all_fit(self, left: int) -> bool:
        """Say whether everybody in turn finds a free block, also where no new one is due."""
        if left:
            return left > 0
        base, _, _ = self.running[next(reversed(self.running))]
        return (base + self.steps) % self.size == 0

    def _preempt(self, now: int) -> int:
        """Take the place of whoever was admitted last; return who that is."""
        index, (base, first, last) = self.running.popitem()
        held = base + self.steps
        self.context -= held
        self._release(index, base, held)
        del self.ending[bisect_left(self.ending, (-last, index))]
        self.preempted += 1
        self._requeue(index, held + 1)
        recorder = self.recorder
        if first != recorder.iterations:
            self._stays.fromlist([first, recorder.iterations - 1, base, base + last + 1])
        recorder.lose(self.row[index], now)
        return index

    def _release(self, index: int, base: int, held: int) -> None:
        """Take the memory of a request away that grew until now and holds so many tokens."""
        size, due = self.size, self.due
        self.free += -(-held // size)
        at = (1 - base) % size
        due[at] -= 1
        due[at + size] -= 1

    # Inside

    def _demand(self, steps: int) -> int:
        """Return the blocks that so many steps take."""
        size = self.size
        first = (self.steps + 1) % size
        if steps == 1:
            return self.due[first]
        if steps < size:
            return sum(self.due[first : first + steps])
        rounds, rest = divmod(steps, size)
        return rounds * len(self.running) + sum(self.due[first : first + rest])

    def _stretch(self, start: int, sequences: int) -> tuple[int, int, int, int, int]:
        """Say which iterations only decode, with nobody over, admitted or preempted.

        Args:
            start: of the first, in ticks.
            sequences: those who run.

        Returns:
            As ``LEAP_FIELDS``, and the ticks of all; no iterations if the first must be planned.
        """
        if self.restless or not sequences:
            return _STAY
        # The first iteration that starts at or after an arrival must be planned, unless others wait already.
        time = (self.end_of_time if self.waiting else self.horizon) - start
        if time <= 0:
            return _STAY
        steps = -self.ending[-1][0] - self.steps
        if steps <= 0:
            return _STAY
        room, size = self.free - self.spare, self.size
        # Nobody takes more than a block in as many steps as it has slots: nearly always answer enough.
        if (steps // size + 1) * sequences > room and self._demand(steps) > room:
            if room < 0:
                return _STAY
            rounds, room = divmod(room, sequences)
            after = (self.steps + 1) % size
            # In a round everybody takes a block; the last round stops where room ends.
            steps = rounds * size + bisect_right(list(accumulate(self.due[after : after + size])), room)
            if not steps:
                return _STAY
        context = self.context + sequences
        first, increment, linear = self.decode(sequences, context)
        if linear < steps:
            steps = linear
        span = steps * first
        if span <= time:
            span += increment * (steps * (steps - 1) >> 1)
        if span > time:
            steps = steps_before(first, increment, time)
            span = steps * first + increment * (steps * (steps - 1) >> 1)
        return steps, first, increment, context, span

    def _iterate(self, now: int, entered: list[int]) -> int:
        """Write down what was planned, and leap over what follows; return when that is over, in ticks."""
        recorder = self.recorder
        continuing = decoding = self.decoding
        if entered:
            # fmt: off
            shape = new_tuple(IterationShape, (
                self.batched, self.tokens, self.context_tokens, self.decode_context, self.pairs,
                0, 0, 0, decoding, decoding + len(entered), False,
            ))
            # fmt: on
            ticks = self.cost.iteration(shape)
            stalls, end = self.stalls, now + ticks
            if stalls:
                recorder.stall(now)
            first_scheduled, first_token = recorder.first_scheduled, recorder.first_token
            for index in entered:
                row = self.row[index]
                if first_scheduled[row] < 0 and not stalls:
                    first_scheduled[row] = now
                    first_token[row] = end
                else:
                    recorder.join(row, now, end)
        else:
            ticks = self.decode(decoding, self.context_tokens)[0] if decoding else 0
            if recorder.stalled_since is not None:
                recorder.go_on_all(decoding, now + ticks)
                continuing = 0
        return self._leap(now, ticks, continuing)

    def _leap(self, now: int, ticks: int, continuing: int) -> int:
        """Leap over what follows a planned iteration without a decision; return when that is over.

        Args:
            now: when it begins, in ticks.
            ticks: that it takes.
            continuing: sequences that had a token in the iteration before, and have one in this.
        """
        self.lead = 0
        sequences = len(self.running)
        start = now + ticks
        steps, first, increment, context, span = self._stretch(start, sequences)
        # fmt: off
        self._decision = [
            now, ticks, self.steps, sequences, self.waiting, self.free,
            self.batched, self.tokens, self.context_tokens, self.preempted, continuing,
            steps, first, increment, context,
        ]
        # fmt: on
        return start + span

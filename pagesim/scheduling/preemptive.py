"""What schedulers share that preempt: who runs, who waits, who is swapped out, and how room is made."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import Literal

from pagesim.errors import PagesimError
from pagesim.kvcache import Allocator, Copy, PagedAllocator
from pagesim.scheduling.base import Choice, Plan
from pagesim.scheduling.dead_ends import DeadEnd
from pagesim.scheduling.group import Arrivals, Group
from pagesim.scheduling.queue import WaitingQueue

Preemption = Literal["default", "recompute", "swap", "auto"]

Prices = Callable[[int, int, int, int], tuple[int, int]]
"""Tells what swapping a sequence and what recomputing it costs, in ticks, from its tokens and blocks and from
the sequences and the context tokens that run beside it."""


class Preemptive(ABC):
    """The running set, first come first served, the queue, the swap space, and the rules for making room.

    A subclass makes the plan: the order of its phases and who is admitted are its own.

    Attributes:
        take_overs: None, or a list of whoever wants to know which beams fork; after an iteration it is given
            (sequence, the one whose tokens it now has) of each, in order.

    Args:
        memory: empty.
        queue: empty; where preempted groups go is its affair.
        watermark: share of the blocks that an admission must leave free.
        preemption: ``default`` recomputes a group of one sequence and swaps a larger one, as the paper's
            system and vLLM do; ``auto`` takes what is cheaper where both can be done; the others force one.
            Memory that cannot share has no swap space, and its samples are independent of one another: there
            a group of any size is recomputed.
        prices: for ``auto``.
    """

    def __init__(
        self,
        memory: Allocator,
        queue: WaitingQueue,
        *,
        watermark: float,
        preemption: Preemption,
        prices: Prices | None = None,
    ) -> None:
        self.memory = memory
        self.queue = queue
        self.watermark_blocks = int(watermark * memory.num_blocks)
        self.preemption = preemption
        self.prices = prices
        self.take_overs: list[tuple[int, int]] | None = None
        self.running_groups = 0
        self.running_sequences = 0
        self._paged = memory if isinstance(memory, PagedAllocator) else None
        self._running: dict[int, Group] = {}  # by Group.order, first come first
        self._swapped: list[Group] = []
        self._finishes: list[tuple[int, int, Group]] = []  # a heap; preempted groups leave stale entries
        self._orders = 0
        self._context = 0
        self._widest = 1  # samples of the widest group to come
        self._spare = 1  # see _spare_blocks
        self._forks: list[tuple[int, int, Group]] = []  # a heap like _finishes: who forks beams when
        self._beam_copies: list[tuple[Group, list[Copy]]] = []  # where memory cannot share, for the next step
        self.restless = False  # whether the next iteration must be planned, whatever it does

    @property
    def is_plain(self) -> bool:
        """Whether nobody is swapped out, nothing is to be copied, and nobody who waited went away."""
        return not (
            self._swapped or self._beam_copies or self.memory.sharing_tails or self.queue.somebody_left
        )

    @property
    def waiting(self) -> int:
        return self.queue.waiting

    @property
    def swapped(self) -> int:
        return len(self._swapped)

    @property
    def next_arrival(self) -> int | None:
        return self.queue.next_arrival

    @property
    def arrival_matters(self) -> bool:
        # A head that is blocked stays blocked until somebody finishes, and nobody overtakes it.
        return not self._swapped and not self.queue.waiting

    @property
    def next_context(self) -> int:
        return self._context + self.running_sequences

    def running(self) -> Iterable[Group]:
        return self._running.values()

    def steady(self) -> int:
        if self.restless or self.memory.sharing_tails or self._beam_copies or not self.running_groups:
            return 0
        finishes, forks = self._finishes, self._forks
        end, order, group = finishes[0]
        while group.order != order or group.last_step != end:  # it lost its place since
            heappop(finishes)
            end, order, group = finishes[0]
        if forks and forks[0][0] < end:
            end = forks[0][0]
        steps = end - self.memory.steps_grown
        return self.memory.growable(steps, self._spare) if steps > 0 else 0

    def undisturbed(self, now: int) -> int:
        self.queue.arrive(now)
        # Who waits may be admitted now that somebody is over: looking twice costs more than a plan.
        return 0 if self._swapped or self.queue.waiting else self.steady()

    def expect(self, arrivals: Arrivals) -> None:
        self.queue.expect(arrivals)
        self._widest = arrivals.widest
        self._spare = self._spare_blocks()
        if self.preemption == "recompute" and self._widest > 1 and self.memory.shares:
            raise PagesimError(
                "preemption recompute cannot be forced on requests of several samples: the engine swaps them"
            )

    def announce(self) -> None:
        self.queue.announce()

    def advance(self, steps: int) -> None:
        self.memory.grow(steps)
        self._context += steps * self.running_sequences

    def abort(self, row: int, now: int) -> int:
        self.queue.arrive(now)
        for group in self._running.values():
            if group.row == row:
                return self._leave(group)
        for place, group in enumerate(self._swapped):
            if group.row == row:
                del self._swapped[place]
                assert self._paged is not None, "only paged memory swaps"
                for sequence in group.sequences:
                    self._paged.drop_swapped(sequence)
                return _generated(group)
        waiting = self.queue.abort(row)
        return 0 if waiting is None else _generated(waiting)

    def finish(self) -> list[Group]:
        step = self.memory.steps_grown
        finishes = self._finishes
        done: list[Group] = []
        while finishes and finishes[0][0] <= step:
            last_step, order, group = heappop(finishes)
            if group.order == order and group.last_step == last_step:
                done.append(group)
        if len(done) > 1:
            done.sort(key=lambda group: (group.arrival, group.order))
        for group in done:
            self._end(group, group.base + step + 1)
        if self._forks:
            self._fork_beams(step)
        return done

    def _end(self, group: Group, length: int) -> None:
        """Let those samples of a group go that are over at this length, the last token counted."""
        samples = group.samples
        gone = group.end(length)
        for sequence in gone:
            self.memory.free(sequence)
        self._context -= len(gone) * (length - 1)
        if group.samples:
            self.running_sequences -= len(gone)
            group.last_step += group.next_final - length
            heappush(self._finishes, (group.last_step, group.order, group))
        else:
            self._stop(group, samples)
            group.length = length

    def _fork_beams(self, step: int) -> None:
        forks = self._forks
        while forks and forks[0][0] <= step:
            _, order, group = heappop(forks)
            if group.order != order or group.last_step < 0:
                continue
            assert group.beams is not None
            for dropped, survivor in group.beams.fork():
                copies = self.memory.adopt(group.sequences[dropped], group.sequences[survivor])
                if copies:
                    self._beam_copies.append((group, copies))
                if self.take_overs is not None:
                    self.take_overs.append((group.sequences[dropped], group.sequences[survivor]))
            self._await_fork(group)

    def _await_fork(self, group: Group) -> None:
        """Note when a running group forks beams next, if it has any and runs so long."""
        if group.beams is not None:
            # Its token t is sampled at the step at which it holds t − 1 tokens beyond the prompt.
            due = group.prompt + group.beams.token - 1 - group.base
            if due < group.last_step:
                heappush(self._forks, (due, group.order, group))

    # Everybody who runs gets room for the token sampled last; the latest arrivals make room

    def _keep_running(self, plan: Plan) -> None:
        if self.memory.grows_on_demand:
            while self.running_groups and not self._all_fit():
                self._preempt(self._running[next(reversed(self._running))], plan)
        copies = self.memory.grow(1)
        if copies:
            plan.copies = tuple(copies)
        if self._beam_copies:
            for group, copied in self._beam_copies:
                if group.last_step >= 0:
                    plan.copies += tuple(copied)
            self._beam_copies.clear()
        self._context += self.running_sequences

    def _all_fit(self) -> bool:
        """Say whether every group in turn finds a free block for each of its sequences.

        The rule asks for that block even where no new one is due. It goes through the groups in order and
        preempts from the end until the one at hand fits; so it keeps the longest prefix in which everybody
        fits, and preempting from the end while somebody does not comes to the same.
        """
        memory = self.memory
        left = memory.free_blocks - memory.demand(1)
        if left >= self._widest:
            return True
        if left < 0:
            return False
        size = memory.block_size
        if self._widest == 1:
            last = self._running[next(reversed(self._running))]
            return left > 0 or (last.base + memory.steps_grown) % size == 0
        free = memory.free_blocks
        for group in self._running.values():
            if free < group.samples:
                return False
            if (group.base + memory.steps_grown) % size == 0:
                free -= group.samples
            elif memory.sharing_tails:
                free -= memory.copies_due(group.sequences)
        return True

    def _preempt(self, group: Group, plan: Plan) -> None:
        self._context -= group.samples * (group.base + self.memory.steps_grown)
        self._stop(group, group.samples)
        group.length = group.base + self.memory.steps_grown + 1
        if not self.memory.shares or (group.samples == 1 and not self._swaps(group, plan)):
            for sequence in group.sequences:
                self.memory.free(sequence)
            self.queue.requeue(group)
            plan.recomputed += (group,)
            return
        assert self._paged is not None, "only paged memory grows on demand"
        if self._paged.distinct_blocks(group.sequences) <= self._paged.free_cpu_blocks:
            plan.swaps_out += tuple(self._paged.swap_out(group.sequences))
            self._swapped.append(group)
            plan.swapped_out += (group,)
        else:
            for sequence in group.sequences:
                self.memory.free(sequence)
            plan.stuck += ((group, DeadEnd.SWAP_SPACE_FULL),)

    def _swaps(self, group: Group, plan: Plan) -> bool:
        """Say whether a victim of one sequence is swapped out."""
        if self.preemption != "auto":
            return self.preemption == "swap"
        assert self.prices is not None
        assert self._paged is not None, "only paged memory swaps"
        blocks = self._paged.held_blocks(group.sequences[0])
        swap, recompute = self.prices(group.length, blocks, self.running_sequences, self._context)
        swaps = swap < recompute and blocks <= self._paged.free_cpu_blocks
        plan.choices += (Choice(group, swaps, blocks, swap, recompute),)
        return swaps

    # Who was swapped out comes back, first come first served

    def _swap_in(self, plan: Plan) -> None:
        memory = self._paged
        assert memory is not None, "only paged memory swaps"
        self._swapped.sort(key=lambda group: group.arrival)
        while self._swapped:
            group = self._swapped[0]
            blocks = memory.distinct_blocks(group.sequences) + group.samples
            if memory.free_blocks - blocks < self.watermark_blocks:
                if self.running_groups or memory.free_blocks < memory.num_blocks:
                    return
                for sequence in group.sequences:  # the device is empty and still too small
                    memory.drop_swapped(sequence)
                plan.stuck += ((self._swapped.pop(0), DeadEnd.NEVER_SWAPPED_IN),)
                continue
            if not self.may_join(group):
                return
            del self._swapped[0]
            plan.swaps_in += tuple(memory.swap_in(group.sequences))
            for sequence in group.sequences:
                copy = memory.append(sequence)
                if copy is not None:
                    plan.copies += (copy,)
            plan.resumed += (group,)
            self._start(group)

    def _start(self, group: Group) -> None:
        memory = self.memory
        for sequence in group.sequences:
            memory.start_growing(sequence)
        step = memory.steps_grown
        group.base = group.length - step
        group.last_step = step + group.next_final - group.length - 1
        group.order = self._orders
        self._orders += 1
        running = self._running
        out_of_order = running and running[next(reversed(running))].arrival > group.arrival
        running[group.order] = group
        if out_of_order:
            self._running = dict(sorted(running.items(), key=lambda item: item[1].arrival))
        heappush(self._finishes, (group.last_step, group.order, group))
        if group.beams is not None:
            self._await_fork(group)
        self.running_groups += 1
        self.running_sequences += group.samples
        self._context += group.samples * group.length

    def dismiss(self, group: Group) -> None:
        """Let somebody else keep a running group of one sequence, and its memory, until `readmit`."""
        self._context -= self._held(group)
        self._stop(group, 1)
        self.memory.free(group.sequences[0])

    def readmit(self, group: Group) -> None:
        """Let a group of one sequence run that was kept elsewhere; its length is what it holds."""
        self.memory.allocate(group.sequences[0], group.length, group.output)
        self._start(group)

    def _stop(self, group: Group, samples: int) -> None:
        """Take a group of so many samples out of those that run."""
        del self._running[group.order]
        group.last_step = -1
        self.running_groups -= 1
        self.running_sequences -= samples

    def _spare_blocks(self) -> int:
        """Return the blocks that must be free after a step for everybody to go on undisturbed."""
        return self._widest

    def _leave(self, group: Group) -> int:
        """Take a running group away; return the tokens that it has generated."""
        held = self._held(group)
        self._context -= group.samples * held
        self._stop(group, group.samples)
        for sequence in group.sequences:
            self.memory.free(sequence)
        # The token sampled last has no KV yet.
        return group.generated + group.samples * max(0, held + 1 - group.prompt)

    def _held(self, group: Group) -> int:
        """Return the tokens whose KV a sample of a running group holds, between two iterations."""
        return group.base + self.memory.steps_grown

    @abstractmethod
    def may_join(self, group: Group) -> bool:
        """Say whether the limits let a group run beside those who do.

        A subclass may add conditions. While nobody runs they must all hold, or the group is given up as
        stuck; and for leaps to stay exact, one that fails may begin to hold only when somebody leaves.
        """


def _generated(group: Group) -> int:
    """Return the tokens of a group that is not running."""
    return group.generated + group.samples * (group.length - group.prompt)

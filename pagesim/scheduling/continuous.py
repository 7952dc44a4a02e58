"""Iteration-level scheduling, first come first served: Orca's loop and the paper's vLLM.

Prompts and decodes run together in one iteration. What tells the two systems apart is their memory: where
everything is reserved at admission nobody is ever preempted; where memory grows on demand the latest arrival
makes room for the others. Rules as in the schedulers of the PagedAttention paper's artifact.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Literal

from pagesim.errors import PagesimError
from pagesim.memory import Allocator, Fit, PagedAllocator
from pagesim.scheduling.base import Plan
from pagesim.scheduling.group import Arrivals, Group
from pagesim.scheduling.queue import WaitingQueue

Preemption = Literal["default", "recompute", "swap"]


class ContinuousBatching:
    """See `Scheduler` for the contract.

    Args:
        memory: empty.
        watermark: share of the blocks that an admission must leave free.
        max_num_seqs: limit on running groups plus the samples of the one that joins.
        max_num_batched_tokens: limit on running sequences plus the prompts that join, in one iteration.
        max_model_len: no request is longer.
        preemption: ``default`` recomputes a group of one sequence and swaps a larger one, as the paper's
            system does; the others force one of the two.
    """

    def __init__(
        self,
        memory: Allocator,
        *,
        watermark: float,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        preemption: Preemption = "default",
    ) -> None:
        self.memory = memory
        self.queue = WaitingQueue()
        self.watermark_blocks = int(watermark * memory.num_blocks)
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.preemption = preemption
        self.running_groups = 0
        self.running_sequences = 0
        self._paged = memory if isinstance(memory, PagedAllocator) else None
        self._running: dict[int, Group] = {}  # by Group.order, first come first
        self._swapped: list[Group] = []
        self._finishes: list[tuple[int, int, Group]] = []  # a heap; preempted groups leave stale entries
        self._orders = 0
        self._context = 0
        self._widest = 1  # samples of the widest group to come
        self._undiverged: list[Group] = []
        self._restless = False

    # The contract's questions

    @property
    def waiting(self) -> int:
        return len(self.queue)

    @property
    def swapped(self) -> int:
        return len(self._swapped)

    @property
    def next_arrival(self) -> int | None:
        return self.queue.next_arrival

    @property
    def arrival_matters(self) -> bool:
        # A head that is blocked stays blocked until somebody finishes, and nobody overtakes it.
        return not self._swapped and not len(self.queue)

    def running(self) -> Iterable[Group]:
        return self._running.values()

    def accepts(self, prompt_tokens: int, output_tokens: int, samples: int) -> bool:
        memory = self.memory
        if prompt_tokens + output_tokens > self.max_model_len or samples > self.max_num_seqs:
            return False
        if prompt_tokens > self.max_num_batched_tokens:
            return False
        if memory.probe(prompt_tokens, output_tokens, samples, self.watermark_blocks) is Fit.NEVER:
            return False
        if not memory.grows_on_demand:
            return True
        # The last token's KV is never stored.
        shared = prompt_tokens // memory.block_size
        longest = -(-(prompt_tokens + output_tokens - 1) // memory.block_size)
        return shared + samples * (longest - shared) <= memory.num_blocks

    def steady(self) -> int:
        if self._restless or self._undiverged or not self.running_groups:
            return 0
        finishes = self._finishes
        while finishes[0][2].last_step != finishes[0][0]:
            heappop(finishes)
        steps = finishes[0][0] - self.memory.steps_grown
        return self.memory.growable(steps, self._widest) if steps > 0 else 0

    def blocked_externally(self) -> bool:
        if self.memory.grows_on_demand:
            return False
        head = self.queue.head()
        if head is None:
            return False
        memory = self.memory
        blocks = memory.blocks_for(head.length, head.output) * head.samples
        return (
            blocks <= memory.free_blocks
            and memory.probe(head.length, head.output, head.samples) is not Fit.NOW
        )

    # The contract's actions

    def expect(self, arrivals: Arrivals) -> None:
        self.queue.expect(arrivals)
        self._widest = max(arrivals.samples, default=1)
        if self.preemption == "recompute" and self._widest > 1:
            raise PagesimError(
                "preemption recompute cannot be forced on requests of several samples: the engine swaps them"
            )

    def plan(self, now: int) -> Plan:
        self.queue.arrive(now)
        plan = Plan()
        if self._undiverged:
            plan.diverged, self._undiverged = self._undiverged, []
        self._keep_running(plan)
        if self._swapped and not plan.swapped_out:
            self._swap_in(plan)
        plan.batched_tokens = plan.tokens = self.running_sequences
        plan.decode_context = self._context
        self._restless = bool(plan.swapped_out)
        if not self._swapped:
            self._admit(plan)
        plan.context_tokens = self._context
        return plan

    def advance(self, steps: int) -> None:
        self.memory.grow(steps)
        self._context += steps * self.running_sequences

    def finish(self) -> list[Group]:
        step = self.memory.steps_grown
        finishes = self._finishes
        done: list[Group] = []
        if not finishes or finishes[0][0] > step:
            return done
        while finishes and finishes[0][0] <= step:
            last_step, _, group = heappop(finishes)
            if group.last_step == last_step:
                done.append(group)
        if len(done) > 1:
            done.sort(key=lambda group: (group.arrival, group.order))
        for group in done:
            self._context -= group.samples * (group.base + step)
            self._stop(group)
            if group in self._undiverged:
                self._undiverged.remove(group)
            group.length = group.final_length
            for sequence in group.sequences:
                self.memory.free(sequence)
        return done

    # Step A: everybody who runs gets room for the token sampled last, the latest arrivals make room

    def _keep_running(self, plan: Plan) -> None:
        if self.memory.grows_on_demand:
            while self.running_groups and not self._all_fit(plan.diverged):
                self._preempt(self._running[next(reversed(self._running))], plan)
        plan.copies += self.memory.grow(1)
        self._context += self.running_sequences

    def _all_fit(self, undiverged: list[Group]) -> bool:
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
            elif group in undiverged:
                free -= group.samples - 1
        return True

    def _preempt(self, group: Group, plan: Plan) -> None:
        self._context -= group.samples * (group.base + self.memory.steps_grown)
        self._stop(group)
        group.length = group.base + self.memory.steps_grown + 1
        if group in plan.diverged:
            plan.diverged.remove(group)
        if group.samples == 1 and self.preemption != "swap":
            for sequence in group.sequences:
                self.memory.free(sequence)
            self.queue.requeue(group)
            plan.recomputed.append(group)
            return
        assert self._paged is not None, "only paged memory grows on demand"
        if self._paged.distinct_blocks(group.sequences) <= self._paged.free_cpu_blocks:
            plan.swaps_out += self._paged.swap_out(group.sequences)
            self._swapped.append(group)
            plan.swapped_out.append(group)
        else:
            # The paper's system dies here; ours gives the request up and goes on.
            for sequence in group.sequences:
                self.memory.free(sequence)
            plan.stuck.append(group)

    # Step B: who was swapped out comes back first

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
                plan.stuck.append(self._swapped.pop(0))
                continue
            if self.running_groups + group.samples > self.max_num_seqs:
                return
            del self._swapped[0]
            plan.swaps_in += memory.swap_in(group.sequences)
            for sequence in group.sequences:
                copy = memory.append(sequence)
                if copy is not None:
                    plan.copies.append(copy)
            plan.resumed.append(group)
            self._start(group)

    # Step C: new and recomputed requests join, in order of arrival

    def _admit(self, plan: Plan) -> None:
        memory = self.memory
        queue = self.queue
        while (group := queue.head()) is not None:
            length, samples = group.length, group.samples
            fits = memory.probe(length, group.output, samples, self.watermark_blocks) is Fit.NOW
            if plan.recomputed and group in plan.recomputed:
                # It may come back in the next iteration; if it does not fit now it will not fit then.
                self._restless = fits
                return
            too_long = plan.batched_tokens + length > self.max_num_batched_tokens
            if (not fits or too_long) and not self.running_groups:
                # Nothing that holds memory or tokens will ever leave: it can never be admitted.
                queue.pop(group)
                plan.stuck.append(group)
                continue
            if not fits:
                return
            if too_long:
                self._restless = True
                return
            if self.running_groups + samples > self.max_num_seqs:
                return
            queue.pop(group)
            first = group.sequences[0]
            memory.allocate(first, length, group.output)
            for sequence in group.sequences[1:]:
                memory.fork(first, sequence)
            if samples > 1 and memory.grows_on_demand:
                self._undiverged.append(group)
            plan.prompts.append(group)
            plan.batched_tokens += length
            copies = 1 if memory.grows_on_demand else samples
            plan.tokens += copies * length
            plan.query_key_pairs += copies * (length * (length + 1) // 2)
            self._start(group)

    def _start(self, group: Group) -> None:
        memory = self.memory
        for sequence in group.sequences:
            memory.start_growing(sequence)
        step = memory.steps_grown
        group.base = group.length - step
        group.last_step = step + group.final_length - group.length - 1
        group.order = self._orders
        self._orders += 1
        running = self._running
        out_of_order = running and running[next(reversed(running))].arrival > group.arrival
        running[group.order] = group
        if out_of_order:
            self._running = dict(sorted(running.items(), key=lambda item: item[1].arrival))
        heappush(self._finishes, (group.last_step, group.order, group))
        self.running_groups += 1
        self.running_sequences += group.samples
        self._context += group.samples * group.length

    def _stop(self, group: Group) -> None:
        del self._running[group.order]
        group.last_step = -1
        self.running_groups -= 1
        self.running_sequences -= group.samples

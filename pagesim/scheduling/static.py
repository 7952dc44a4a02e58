"""Request-level scheduling: FasterTransformer's static batches, as the PagedAttention artifact runs them."""

from __future__ import annotations

from collections.abc import Iterable

from pagesim.errors import PagesimError
from pagesim.kvcache import Allocator
from pagesim.scheduling.base import Plan
from pagesim.scheduling.group import Arrivals, Group
from pagesim.scheduling.queue import WaitingQueue


class StaticBatching:
    """See `Scheduler` for the contract.

    When nothing runs, the longest prefix of the queue forms a batch; nobody joins or leaves it. Inputs are
    padded to the longest, every row generates as many tokens as the longest output, and all finish together.
    Each row reserves the padded length, so memory must be one that reserves exactly what it is told.

    Args:
        memory: empty; reserves prompt + output.
        max_batch: requests a batch at most: what the engine was found to hold, an input and not a result.
        max_length: limit on the longest input plus the longest output of a batch.
    """

    def __init__(self, memory: Allocator, *, max_batch: int, max_length: int) -> None:
        self.memory = memory
        self.queue = WaitingQueue()
        self.max_batch = max_batch
        self.max_length = max_length
        self.running_groups = 0
        self.running_sequences = 0
        self._batch: list[Group] = []
        self._padded_input = 0
        self._padded_output = 0
        self._steps_done = 0

    @property
    def waiting(self) -> int:
        return self.queue.waiting

    @property
    def swapped(self) -> int:
        return 0

    @property
    def next_arrival(self) -> int | None:
        return self.queue.next_arrival

    @property
    def arrival_matters(self) -> bool:
        return not self._batch

    @property
    def next_context(self) -> int:
        return self.running_sequences * (self._padded_input + self._steps_done + 1)

    def running(self) -> Iterable[Group]:
        return self._batch

    def accepts(self, prompt_tokens: int, output_tokens: int, samples: int) -> bool:
        if prompt_tokens + output_tokens > self.max_length:
            return False
        return self.memory.blocks_for(prompt_tokens, output_tokens) * samples <= self.memory.num_blocks

    def expect(self, arrivals: Arrivals) -> None:
        self.queue.expect(arrivals)

    def plan(self, now: int) -> Plan:
        self.queue.arrive(now)
        plan = Plan()
        if self._batch:
            self.memory.grow(1)
            self._steps_done += 1
            plan.batched_tokens = plan.tokens = plan.decoding = self.running_sequences
            plan.decode_context = self.running_sequences * (self._padded_input + self._steps_done)
        else:
            self._form_batch(plan)
        plan.sequences = self.running_sequences
        plan.context_tokens = self.running_sequences * (self._padded_input + self._steps_done)
        return plan

    def steady(self) -> int:
        return self._padded_output - 1 - self._steps_done if self._batch else 0

    def announce(self) -> None:
        self.queue.announce()

    def undisturbed(self, now: int) -> int:
        return 0  # a batch is over when somebody is

    def advance(self, steps: int) -> None:
        self.memory.grow(steps)
        self._steps_done += steps

    def abort(self, row: int, now: int) -> int:
        raise PagesimError(
            "a static batch cannot be left: leave out abort_s and client_timeout, or choose another policy"
        )

    def finish(self) -> list[Group]:
        if not self._batch or self._steps_done < self._padded_output - 1:
            return []
        done, self._batch = self._batch, []
        for group in done:
            for sequence in group.end(group.final_length):
                self.memory.free(sequence)
        self.running_groups = self.running_sequences = 0
        return done

    def blocked_externally(self) -> bool:
        return False  # the queue waits for the batch, not for memory

    def _form_batch(self, plan: Plan) -> None:
        longest_input = longest_output = sequences = 0
        while (group := self.queue.head()) is not None and len(self._batch) < self.max_batch:
            width = max(longest_input, group.prompt)
            output = max(longest_output, group.output)
            rows = sequences + group.samples
            if width + output > self.max_length:
                break
            if self._batch and group.samples != self._batch[0].samples:
                break
            if rows * self.memory.blocks_for(width, output) > self.memory.num_blocks:
                break
            self.queue.pop(group)
            self._batch.append(group)
            longest_input, longest_output, sequences = width, output, rows
        self._padded_input, self._padded_output = longest_input, longest_output
        self._steps_done = 0
        self.running_groups = len(self._batch)
        self.running_sequences = sequences
        step = self.memory.steps_grown
        for group in self._batch:
            group.base = group.prompt - step
            group.last_step = step + group.output - 1  # of its own tokens; padding follows
            for sequence in group.sequences:
                self.memory.allocate(sequence, longest_input, longest_output)
                self.memory.start_growing(sequence)
        plan.prompts = tuple(self._batch)
        plan.batched_tokens = plan.tokens = sequences * longest_input
        plan.query_key_pairs = sequences * (longest_input * (longest_input + 1) // 2)

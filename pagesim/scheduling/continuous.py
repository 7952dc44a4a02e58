"""Iteration-level scheduling, first come, first served: Orca's loop and the paper's vLLM.

Prompts and decodes run together in one iteration. If memory is reserved at admission, no request is ever
preempted; if it grows on demand, the latest arrival is preempted when blocks run out. The rules are those of
the PagedAttention paper's artifact.
"""

from __future__ import annotations

from typing import ClassVar

from pagesim.kvcache import BlockManager, SequenceGroup
from pagesim.scheduling.arrivals import Arrivals
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.continuous_options import OrcaOptions, SospOptions
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.failure_modes import FailureMode, no_room
from pagesim.scheduling.growth import keep_running
from pagesim.scheduling.options import Prices
from pagesim.scheduling.queue import WaitingQueue
from pagesim.scheduling.request import EngineRequest
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class ContinuousBatching(Scheduler):
    """Iteration-level scheduling over one memory.

    ``max_num_seqs`` limits running requests plus the samples of the joining one, as in the paper's system.

    Args:
        memory: empty block manager.
        options: options with the limits of an iteration.
        max_model_len: maximum length of a request in tokens.
        prices: costs of swapping and of recomputing, for preemption ``auto``.
    """

    __slots__ = (
        "_probe",
        "max_num_batched_tokens",
        "max_num_seqs",
    )

    budget_option: ClassVar[str] = "max_num_batched_tokens"
    """Name of the option that limits the tokens of an iteration."""

    def __init__(
        self,
        memory: BlockManager,
        options: OrcaOptions | SospOptions,
        *,
        max_model_len: int,
        prices: Prices | None = None,
    ) -> None:
        super().__init__(
            memory,
            WaitingQueue(),
            options,
            max_model_len=max_model_len,
            watermark=options.watermark,
            prices=prices,
        )
        self.max_num_seqs = options.max_num_seqs
        self.max_num_batched_tokens = options.max_num_batched_tokens
        self._probe = SequenceGroup(1)  # stands for a request in capacity checks

    def expect(self, arrivals: Arrivals) -> None:
        super().expect(arrivals)
        self.spare_blocks = self.widest  # the rule requires them even if no new block is needed

    def refusal(self, prompt_tokens: int, output_tokens: int, samples: int) -> str:
        memory = self.memory
        if prompt_tokens + output_tokens > self.max_model_len:
            return f"prompt and output exceed max_model_len, {self.max_model_len} tokens"
        if samples > self.max_num_seqs:
            return f"its samples exceed max_num_seqs, {self.max_num_seqs}"
        if prompt_tokens > self.max_num_batched_tokens:
            return (
                f"the prompt exceeds {self.budget_option}, {self.max_num_batched_tokens} tokens, and is not "
                "cut into chunks"
            )
        probe = self._probe
        probe.output, probe.samples = output_tokens, samples
        if not memory.could_admit(probe, prompt_tokens, self.watermark_blocks):
            return no_room(self.memory)
        if not memory.grows:
            return ""
        # The last token's KV is never stored.
        shared = prompt_tokens // memory.block_size if memory.shares else 0
        longest = memory.blocks_for(prompt_tokens + output_tokens - 1)
        return "" if shared + samples * (longest - shared) <= memory.num_blocks else no_room(self.memory)

    def blocked_externally(self) -> bool:
        if self.memory.grows:
            return False
        head = self.queue.head()
        if head is None or self.memory.can_admit(head, head.length):
            return False
        return self.memory.blocks_to_admit(head, head.length) <= self.memory.free_blocks

    def plan(self, now: int) -> Batch:
        batch = Batch()
        # A: all running requests stay if there is room. B: swapped ones come back. C: waiting ones join.
        keep_running(self, batch)
        if self.swapped and not batch.swapped_out:
            self.swap_space.swap_in(self, batch)
        batch.batched_tokens = batch.tokens = batch.decoding = self.running_sequences
        batch.decode_context = self.context
        self.must_replan = bool(batch.swapped_out)
        if not self.swapped and self.queue.waiting:
            self._admit(batch)
        batch.context_tokens = self.context
        batch.sequences = self.running_sequences
        return batch

    def _admit(self, batch: Batch) -> None:
        memory, queue = self.memory, self.queue
        while (request := queue.head()) is not None:
            length = request.length
            fits = self.has_room(request)
            if batch.recomputed and request in batch.recomputed:
                # It may come back in the next iteration, but only if it fits now.
                self.must_replan = fits
                return
            too_long = batch.batched_tokens + length > self.max_num_batched_tokens
            if not fits or too_long or not self.may_join(request):
                if self.running:
                    # In the next iteration, token budget becomes available again, but not memory or slots.
                    self.must_replan = fits and too_long
                    return
                # No running request will ever free memory or tokens, so it can never be admitted.
                queue.pop(request)
                batch.unschedulable += ((request, FailureMode.NEVER_ADMITTED),)
                continue
            self.admit(request, batch)
            batch.batched_tokens += length
            copies = 1 if memory.shares else request.samples
            batch.tokens += copies * length
            batch.query_key_pairs += copies * (length * (length + 1) // 2)

    def has_room(self, request: EngineRequest) -> bool:
        """Return whether memory has room for the head of the queue."""
        return self.memory.can_admit(request, request.length, self.watermark_blocks)

    def may_join(self, request: EngineRequest) -> bool:
        # The paper's system also adds up sequence groups and sequences here.
        return len(self.running) + request.samples <= self.max_num_seqs


@mypyc_attr(allow_interpreted_subclasses=True)
class Orca(ContinuousBatching):
    """Orca: iteration-level scheduling, usually with memory that is reserved at admission."""

    __slots__ = ()

    Options = OrcaOptions


@mypyc_attr(allow_interpreted_subclasses=True)
class VllmSosp(ContinuousBatching):
    """The paper's vLLM: blocks on demand, preemption by recomputation or swapping."""

    __slots__ = ()

    Options = SospOptions

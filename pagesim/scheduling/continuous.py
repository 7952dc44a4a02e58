"""Iteration-level scheduling, first come first served: Orca's loop and the paper's vLLM.

Prompts and decodes run together in one iteration. What tells the two systems apart is their memory: where
everything is reserved at admission no request is ever preempted; where memory grows on demand the latest
arrival makes room for the others. Rules as in the schedulers of the PagedAttention paper's artifact.
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

    ``max_num_seqs`` limits running requests plus the samples of the one that joins, as in the paper's system.

    Args:
        memory: empty.
        options: with the limits of an iteration.
        max_model_len: tokens; no request is longer.
        prices: for preemption ``auto``.
    """

    __slots__ = (
        "_probe",
        "max_num_batched_tokens",
        "max_num_seqs",
    )

    budget_option: ClassVar[str] = "max_num_batched_tokens"
    """The option that says how many tokens an iteration has at most."""

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
        self._probe = SequenceGroup(1)  # asked about in place of a request

    def expect(self, arrivals: Arrivals) -> None:
        super().expect(arrivals)
        self.spare_blocks = self.widest  # the rule asks for them even where no new block is due

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
        # A: every running request stays, if there is room. B: swapped ones come back. C: others join.
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
                # It may come back in the next iteration; if it does not fit now it will not fit then.
                self.must_replan = fits
                return
            too_long = batch.batched_tokens + length > self.max_num_batched_tokens
            if not fits or too_long or not self.may_join(request):
                if self.running:
                    # The batch's tokens are fewer in the next iteration; memory and seats are not.
                    self.must_replan = fits and too_long
                    return
                # Nothing that holds memory or tokens will ever leave: it can never be admitted.
                queue.pop(request)
                batch.unschedulable += ((request, FailureMode.NEVER_ADMITTED),)
                continue
            self.admit(request, batch)
            batch.batched_tokens += length
            copies = 1 if memory.shares else request.samples
            batch.tokens += copies * length
            batch.query_key_pairs += copies * (length * (length + 1) // 2)

    def has_room(self, request: EngineRequest) -> bool:
        """Say whether memory has room for the head of the queue."""
        return self.memory.can_admit(request, request.length, self.watermark_blocks)

    def may_join(self, request: EngineRequest) -> bool:
        # The paper's system adds groups and sequences here.
        return len(self.running) + request.samples <= self.max_num_seqs


@mypyc_attr(allow_interpreted_subclasses=True)
class Orca(ContinuousBatching):
    """Orca: iteration-level scheduling over memory that is usually reserved at admission."""

    __slots__ = ()

    Options = OrcaOptions


@mypyc_attr(allow_interpreted_subclasses=True)
class VllmSosp(ContinuousBatching):
    """The paper's vLLM: blocks on demand, preemption by recomputation or swap."""

    __slots__ = ()

    Options = SospOptions

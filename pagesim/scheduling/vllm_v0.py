"""vLLM's scheduler in 0.1.7 to 0.2.7: an iteration runs only prompts or only decodes, prompts first."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pagesim.kvcache import BlockManager, SequenceGroup
from pagesim.scheduling.arrivals import Arrivals
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.failure_modes import FailureMode, no_room
from pagesim.scheduling.growth import keep_running
from pagesim.scheduling.options import Prices
from pagesim.scheduling.queue import WaitingQueue
from pagesim.scheduling.request import EngineRequest
from pagesim.scheduling.vllm_v0_options import RELEASES, VllmV0Options
from pagesim.setup.compiled import mypyc_attr
from pagesim.workloads.trace import IntColumn


@mypyc_attr(allow_interpreted_subclasses=True)
class VllmV0(Scheduler):
    """vLLM's scheduler before 0.3, with separate iterations for prompts and for decodes.

    Args:
        memory: empty block manager.
        options: engine options; ``max_num_seqs`` limits running sequences.
        max_model_len: maximum length of a prompt in tokens; longer ones are ignored.
        prices: costs of swapping and of recomputing, for preemption ``auto``.
    """

    __slots__ = (
        "max_num_batched_tokens",
        "max_num_seqs",
        "max_paddings",
        "prompt_limit",
        "release",
    )

    Options = VllmV0Options
    samples = "apart"
    reservations = ("on-demand",)
    allocators = ("paged",)
    memory_reason = "vLLM's blocks are taken as sequences grow, and shared"
    needs_sharing = True

    @classmethod
    def longest_sequence(cls, max_model_len: int) -> int:
        return max_model_len + 1  # it is checked only after the token that exceeds it

    @classmethod
    def takes_in(cls, prompt: IntColumn, output: IntColumn, max_model_len: int) -> npt.NDArray[np.bool_]:
        return np.ones(len(prompt), bool)

    def __init__(
        self,
        memory: BlockManager,
        options: VllmV0Options,
        *,
        max_model_len: int,
        prices: Prices | None = None,
    ) -> None:
        super().__init__(
            memory,
            WaitingQueue(preempted_first=True),
            options,
            max_model_len=max_model_len,
            watermark=options.watermark,
            prices=prices,
        )
        self.release = release = RELEASES[options.vllm_version]
        self.max_num_seqs = options.max_num_seqs
        self.max_num_batched_tokens = options.max_num_batched_tokens or max(
            max_model_len, release.batched_tokens
        )
        self.max_paddings = options.max_paddings
        self.prompt_limit = min(max_model_len, self.max_num_batched_tokens)

    def expect(self, arrivals: Arrivals) -> None:
        super().expect(arrivals)
        self.spare_blocks = self.widest  # the rule requires them even if no new block is needed

    def refusal(self, prompt_tokens: int, output_tokens: int, samples: int) -> str:
        return ""  # none is rejected at submission; what cannot be served is ignored when its turn comes

    def later_refusal(self, prompt_tokens: int, output_tokens: int, samples: int) -> str:
        option = "max_model_len" if self.prompt_limit == self.max_model_len else "max_num_batched_tokens"
        probe = SequenceGroup(1, output_tokens, samples)
        # A preempted request is checked again together with its generated tokens.
        for what, length in (
            ("the prompt exceeds", prompt_tokens),
            ("preempted, the prompt and what was generated exceed", prompt_tokens + output_tokens),
        ):
            if length > self.prompt_limit:
                return f"{what} {option}, {self.prompt_limit} tokens"
            if self.release.gives_up and not self.memory.could_admit(probe, length, self.watermark_blocks):
                return no_room(self.memory)
        return ""

    def plan(self, now: int) -> Batch:
        batch = Batch()
        batch.counts_empty = True
        self.must_replan = False
        if not self.swapped and self.queue.waiting:
            self._prefill(batch)
        if batch.prompts or (batch.ignored and self.release.gives_up):
            batch.decodes = False
            # The samples of a prompt are forked once its first token is there.
            batch.sequences = self.running_sequences
            if self.widest > 1:
                batch.sequences -= sum([request.samples - 1 for request in batch.prompts])
            # The next iteration is another batch of prompts, or the first decode of these.
            self.must_replan = True
        else:
            self._decode(batch)
        return batch

    def _prefill(self, batch: Batch) -> None:
        """Admit as many prompts as the limits allow; the head of the queue is never overtaken."""
        memory, queue, pads = self.memory, self.queue, self.release.pads
        longest = 0
        while (request := queue.head()) is not None:
            length = request.length
            fits = memory.can_admit(request, length, self.watermark_blocks)
            if (not fits or length > self.prompt_limit) and self._drops(request):
                queue.pop(request)
                batch.ignored += (request,)
                continue
            joins = self.may_join(request)
            if not self.running and not (fits and joins):
                # No request will ever make room; in the real engine it blocks the queue forever.
                queue.pop(request)
                batch.unschedulable += ((request, FailureMode.NEVER_ADMITTED),)
                continue
            if not fits:
                return
            width = max(longest, length)
            padded = (len(batch.prompts) + 1) * width if pads else batch.tokens + length
            if padded > self.max_num_batched_tokens or not joins:
                return
            if pads and padded - batch.tokens - length > self.max_paddings:
                return
            longest = width
            batch.batched_tokens = padded
            batch.tokens += length
            batch.context_tokens += length
            batch.query_key_pairs += length * (length + 1) // 2
            if request.generated_before:
                batch.never_freed += (request,)
            self.admit(request, batch)

    def _drops(self, request: EngineRequest) -> bool:
        """Return whether the real engine drops a request that does not fit or is too long."""
        length = request.length
        if length > self.prompt_limit:
            return True
        return self.release.gives_up and not self.memory.could_admit(request, length, self.watermark_blocks)

    def _decode(self, batch: Batch) -> None:
        """Give every running request a token; swap requests back in unless one was preempted."""
        waited = bool(self.swapped)
        keep_running(self, batch)
        preempted = bool(batch.recomputed or batch.swapped_out)
        if self.swapped and not preempted:
            self.swap_space.swap_in(self, batch)
        batch.batched_tokens = batch.tokens = batch.sequences = batch.decoding = self.running_sequences
        batch.context_tokens = batch.decode_context = self.context
        batch.launches = bool(batch.blocks_in or batch.blocks_out)
        # The next iteration tries swapped requests if this one could not. It tries prompts if this one did
        # not, or if memory was freed since.
        if self.swapped:
            self.must_replan = preempted
        else:
            self.must_replan = (preempted or waited or bool(batch.unschedulable)) and self._head_moves()

    def _head_moves(self) -> bool:
        """Return whether the head of the queue would be admitted or dropped now."""
        request = self.queue.head()
        if request is None:
            return False
        return self.memory.can_admit(request, request.length, self.watermark_blocks) or self._drops(request)

    def may_join(self, request: EngineRequest) -> bool:
        return self.running_sequences + request.samples <= self.max_num_seqs

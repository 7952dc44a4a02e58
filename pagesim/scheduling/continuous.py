"""Iteration-level scheduling, first come first served: Orca's loop and the paper's vLLM.

Prompts and decodes run together in one iteration. What tells the two systems apart is their memory: where
everything is reserved at admission nobody is ever preempted; where memory grows on demand the latest arrival
makes room for the others. Rules as in the schedulers of the PagedAttention paper's artifact.
"""

from __future__ import annotations

from pagesim.kvcache import Allocator, Fit
from pagesim.scheduling.base import Plan
from pagesim.scheduling.dead_ends import DeadEnd
from pagesim.scheduling.group import Group
from pagesim.scheduling.preemptive import Preemption, Preemptive, Prices
from pagesim.scheduling.queue import WaitingQueue


class ContinuousBatching(Preemptive):
    """See `Scheduler` for the contract.

    Args:
        memory: empty.
        watermark: share of the blocks that an admission must leave free.
        max_num_seqs: limit on running groups plus the samples of the one that joins.
        max_num_batched_tokens: limit on running sequences plus the prompts that join, in one iteration.
        max_model_len: no request is longer.
        preemption, prices: see `Preemptive`.
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
        prices: Prices | None = None,
    ) -> None:
        super().__init__(memory, WaitingQueue(), watermark=watermark, preemption=preemption, prices=prices)
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len

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
        shared = prompt_tokens // memory.block_size if memory.shares else 0
        longest = -(-(prompt_tokens + output_tokens - 1) // memory.block_size)
        return shared + samples * (longest - shared) <= memory.num_blocks

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

    def plan(self, now: int) -> Plan:
        self.queue.arrive(now)
        plan = Plan()
        # A: everybody who runs stays, if there is room. B: who was swapped out comes back. C: others join.
        self._keep_running(plan)
        if self._swapped and not plan.swapped_out:
            self._swap_in(plan)
        plan.batched_tokens = plan.tokens = plan.decoding = self.running_sequences
        plan.decode_context = self._context
        self.restless = bool(plan.swapped_out)
        if not self._swapped:
            self._admit(plan)
        plan.context_tokens = self._context
        plan.sequences = self.running_sequences
        return plan

    def _admit(self, plan: Plan) -> None:
        memory = self.memory
        queue = self.queue
        while (group := queue.head()) is not None:
            length, samples = group.length, group.samples
            fits = memory.probe(length, group.output, samples, self.watermark_blocks) is Fit.NOW
            if plan.recomputed and group in plan.recomputed:
                # It may come back in the next iteration; if it does not fit now it will not fit then.
                self.restless = fits
                return
            too_long = plan.batched_tokens + length > self.max_num_batched_tokens
            if not fits or too_long or not self.may_join(group):
                if self.running_groups:
                    # The batch's tokens are fewer in the next iteration; memory and seats are not.
                    self.restless = fits and too_long
                    return
                # Nothing that holds memory or tokens will ever leave: it can never be admitted.
                queue.pop(group)
                plan.stuck += ((group, DeadEnd.NEVER_ADMITTED),)
                continue
            queue.pop(group)
            first = group.sequences[0]
            memory.allocate(first, length, group.output)
            for sequence in group.sequences[1:]:
                memory.fork(first, sequence)
            plan.prompts += (group,)
            plan.batched_tokens += length
            copies = 1 if memory.shares else samples
            plan.tokens += copies * length
            plan.query_key_pairs += copies * (length * (length + 1) // 2)
            self._start(group)

    def may_join(self, group: Group) -> bool:
        # The paper's system adds groups and sequences here.
        return self.running_groups + group.samples <= self.max_num_seqs

"""vLLM's scheduler of releases 0.1.7 to 0.2.7: an iteration is all prompts or all decodes, prompts first."""

from __future__ import annotations

from dataclasses import dataclass

from pagesim.kvcache import Allocator, Fit
from pagesim.scheduling.base import Plan
from pagesim.scheduling.dead_ends import DeadEnd
from pagesim.scheduling.group import Group
from pagesim.scheduling.preemptive import Preemption, Preemptive, Prices
from pagesim.scheduling.queue import WaitingQueue


@dataclass(frozen=True, slots=True)
class Release:
    """What differs between the releases.

    Attributes:
        pads: a batch of prompts counts padded to its longest; the padding is limited, too.
        gives_up: a prompt that the cache can never hold is ignored instead of blocking the queue for ever.
        batched_tokens: default of max_num_batched_tokens where the model is not longer.
    """

    pads: bool
    gives_up: bool
    batched_tokens: int


RELEASES = {
    "0.1.7": Release(pads=False, gives_up=False, batched_tokens=2560),
    "0.2.0": Release(pads=False, gives_up=False, batched_tokens=2048),
    "0.2.7": Release(pads=True, gives_up=True, batched_tokens=2048),
}


class VllmV0(Preemptive):
    """See `Scheduler` for the contract.

    Args:
        memory: empty.
        release: a value of ``RELEASES``.
        watermark: share of the blocks that an admission must leave free (vLLM: 0.01).
        max_num_seqs: limit on running sequences (vLLM: 256).
        max_num_batched_tokens: limit on the tokens of a batch of prompts.
        max_paddings: limit on its padding, where the release pads (vLLM: 256).
        max_model_len: a longer prompt is ignored.
        preemption, prices: see `Preemptive`.
    """

    def __init__(
        self,
        memory: Allocator,
        release: Release,
        *,
        watermark: float,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_paddings: int,
        max_model_len: int,
        preemption: Preemption = "default",
        prices: Prices | None = None,
    ) -> None:
        super().__init__(
            memory,
            WaitingQueue(preempted_first=True),
            watermark=watermark,
            preemption=preemption,
            prices=prices,
        )
        self.release = release
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_paddings = max_paddings
        self.prompt_limit = min(max_model_len, max_num_batched_tokens)

    def accepts(self, prompt_tokens: int, output_tokens: int, samples: int) -> bool:
        return True  # nobody is turned away at the door: what cannot be served is ignored in its turn

    def blocked_externally(self) -> bool:
        return False  # a block is as good as any other

    def plan(self, now: int) -> Plan:
        self.queue.arrive(now)
        plan = Plan()
        plan.counts_empty = True
        self.restless = False
        if not self._swapped:
            self._prefill(plan)
        if plan.prompts or (plan.ignored and self.release.gives_up):
            plan.decodes = False
            # The samples of a prompt are forked once its first token is there.
            plan.sequences = self.running_sequences - sum([group.samples - 1 for group in plan.prompts])
            # What comes next is another batch of prompts, or the first step of those at hand.
            self.restless = True
        else:
            self._decode(plan)
        return plan

    def _prefill(self, plan: Plan) -> None:
        """Admit prompts, as many as the limits allow; the head of the queue is never overtaken."""
        memory, queue = self.memory, self.queue
        longest = 0
        while (group := queue.head()) is not None:
            length = group.length
            if length > self.prompt_limit:
                queue.pop(group)
                plan.ignored += (group,)
                continue
            fit = memory.probe(length, group.output, group.samples, self.watermark_blocks)
            if fit is Fit.NEVER and self.release.gives_up:
                queue.pop(group)
                plan.ignored += (group,)
                continue
            alone = not self.running_groups
            if alone and (fit is not Fit.NOW or not self.may_join(group)):
                # Nobody will ever make room: the real one blocks the queue for ever.
                queue.pop(group)
                plan.stuck += ((group, DeadEnd.NEVER_ADMITTED),)
                continue
            if fit is not Fit.NOW:
                return
            width = max(longest, length)
            padded = (len(plan.prompts) + 1) * width if self.release.pads else plan.tokens + length
            if padded > self.max_num_batched_tokens or not self.may_join(group):
                return
            if self.release.pads and padded - plan.tokens - length > self.max_paddings:
                return
            longest = width
            plan.batched_tokens = padded
            plan.tokens += length
            plan.context_tokens += length
            plan.query_key_pairs += length * (length + 1) // 2
            queue.pop(group)
            self._admit(group, plan)

    def _admit(self, group: Group, plan: Plan) -> None:
        memory = self.memory
        first = group.sequences[0]
        memory.allocate(first, group.length, group.output)
        for sequence in group.sequences[1:]:
            memory.fork(first, sequence)
        if group.generated:
            plan.leaked += (group,)
        plan.prompts += (group,)
        self._start(group)

    def _decode(self, plan: Plan) -> None:
        """Give everybody who runs a token; bring back who was swapped out unless somebody lost his place."""
        waited = bool(self._swapped)
        self._keep_running(plan)
        preempted = bool(plan.recomputed or plan.swapped_out)
        if self._swapped and not preempted:
            self._swap_in(plan)
        plan.batched_tokens = plan.tokens = plan.sequences = plan.decoding = self.running_sequences
        plan.context_tokens = plan.decode_context = self._context
        plan.launches = bool(plan.swaps_in or plan.swaps_out)
        # The next iteration tries swapped groups if this one could not, or prompts if this one did not or if
        # memory was freed since.
        if self._swapped:
            self.restless = preempted
        else:
            self.restless = (preempted or waited or bool(plan.stuck)) and self._head_fits()

    def _head_fits(self) -> bool:
        group = self.queue.head()
        if group is None:
            return False
        fit = self.memory.probe(group.length, group.output, group.samples, self.watermark_blocks)
        return fit is not Fit.LATER or group.length > self.prompt_limit

    def may_join(self, group: Group) -> bool:
        return self.running_sequences + group.samples <= self.max_num_seqs

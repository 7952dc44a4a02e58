"""Batch: what one iteration computes, and what happened to memory on the way to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pagesim.scheduling.failure_modes import FailureMode
from pagesim.scheduling.request import EngineRequest

if TYPE_CHECKING:  # jobs are of requests, too
    from pagesim.scheduling.offload.jobs import Transfers


class Choice(NamedTuple):
    """How a victim was preempted, where that was free to choose.

    Attributes:
        request: the victim, of one sample.
        swaps: whether it was swapped out; if not, it is recomputed.
        blocks: that it held.
        swap, recompute: what either costs, in ticks.
    """

    request: EngineRequest
    swaps: bool
    blocks: int
    swap: int
    recompute: int


class Share(NamedTuple):
    """What one request computes in an iteration, where that does not follow from its length.

    Attributes:
        request: one that runs in the iteration.
        order: its `SequenceGroup.order` then.
        computed: tokens that were computed before.
        tokens: that it computes now, drafts included.
        drafts: how many of them are.
        outputs: tokens that it is going to have from this iteration; no decision looks at it.
        accepted: drafts that are accepted, those behind its last token included; likewise.
    """

    request: EngineRequest
    order: int
    computed: int
    tokens: int
    drafts: int
    outputs: int
    accepted: int


class Batch:
    """One planned iteration; to a cost model its `IterationShape`.

    Attributes:
        prompts: requests admitted in this iteration, of which a prompt (or what must be recomputed) runs.
        incomplete: those of them of which only a first chunk runs.
        completed: requests admitted before, of which the last chunk runs.
        chunks: what prompts compute, as (request, tokens), where memory gives blocks back before the end.
        loading: requests that took the blocks into which they are loaded from a tier.
        resumed: requests that came back from the swap space.
        skipped: decoding requests that get no token, because the budget did not reach.
        served_again: requests that were skipped and get a token again.
        recomputed: requests that lost their memory and wait again.
        swapped_out: requests that moved to the swap space.
        choices: how victims were preempted, where that was free to choose.
        unschedulable: requests that can never go on, and why; they leave with what they have.
        never_freed: requests that got memory back which the real engine would never free.
        ignored: requests that the real engine drops when their turn comes.
        decodes: whether every running request gets a token; if not, prompts run alone and the others wait.
        launches: whether the model is run even if there is nothing to compute.
        counts_empty: whether an iteration that computes and moves nothing is one all the same, of no length,
            if a request lost its place in it.
        reports: whether it tells the workers of requests that are over, and is an iteration for that alone.
        sequences: that the running requests consist of.
        decoding: those of them that get a token and have had one before.
        discarded: requests of these that are over already, though that was not known: their token is thrown
            away.
        drafts: tokens that are drafts, to be verified.
        shares: what each request computes, in the order in which it was given; None where every decoding one
            computes a single token.
        batched_tokens: tokens as the scheduler's own limit counts them.
        tokens: tokens whose KV is computed, a padded one included.
        context_tokens: over the running sequences, tokens whose KV exists once the iteration has run.
        decode_context: the part of it that belongs to decoding sequences.
        query_key_pairs: over the prompts, pairs of a query and a key that it attends to (causal).
        reached: by attention span, tokens that decoding sequences read; empty unless ``follows_reach``.
        reached_pairs: by attention span, pairs of a query and a key in prompts.
        computed_prompts: prompts, or chunks of one, that are computed.
        transfers: what is copied between the device and a tier beside it; None where there is no such tier.
        blocks_out, blocks_in, blocks_copied: blocks moved to the host and back, and copied on write.
        waited: ticks between two stages of a pipeline, in which it was handed over or the later one was busy.
    """

    prompts: tuple[EngineRequest, ...] = ()
    incomplete: tuple[EngineRequest, ...] = ()
    completed: tuple[EngineRequest, ...] = ()
    chunks: tuple[tuple[EngineRequest, int], ...] = ()
    loading: tuple[EngineRequest, ...] = ()
    resumed: tuple[EngineRequest, ...] = ()
    skipped: tuple[EngineRequest, ...] = ()
    served_again: tuple[EngineRequest, ...] = ()
    recomputed: tuple[EngineRequest, ...] = ()
    swapped_out: tuple[EngineRequest, ...] = ()
    choices: tuple[Choice, ...] = ()
    unschedulable: tuple[tuple[EngineRequest, FailureMode], ...] = ()
    never_freed: tuple[EngineRequest, ...] = ()
    ignored: tuple[EngineRequest, ...] = ()
    decodes = True
    launches = False
    counts_empty = False
    reports = False
    sequences = 0
    decoding = 0
    discarded: tuple[EngineRequest, ...] = ()
    drafts = 0
    shares: Sequence[Share] | None = None
    batched_tokens = 0
    tokens = 0
    context_tokens = 0
    decode_context = 0
    query_key_pairs = 0
    reached: tuple[int, ...] = ()
    reached_pairs: tuple[int, ...] = ()
    computed_prompts = 0
    transfers: Transfers | None = None
    blocks_out = 0
    blocks_in = 0
    blocks_copied = 0
    waited = 0

    @property
    def is_iteration(self) -> bool:
        """Whether anything is computed or moved; if not, the batch takes no time and leaves no row."""
        if self.tokens or self.blocks_out or self.blocks_in or self.reports:
            return True
        return self.counts_empty and bool(self.ignored or self.recomputed)

    @property
    def sampled(self) -> int:
        """Positions at which a token is sampled: each sequence's last token, and its drafts.

        Prompts that end in this iteration count once.
        """
        return self.decoding + self.drafts + len(self.prompts) - len(self.incomplete) + len(self.completed)

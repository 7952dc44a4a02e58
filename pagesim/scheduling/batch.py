"""Batch: what one iteration computes, and how its planning changed memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pagesim.scheduling.failure_modes import FailureMode
from pagesim.scheduling.request import EngineRequest

if TYPE_CHECKING:  # jobs import requests, too
    from pagesim.scheduling.offload.jobs import Transfers


class Choice(NamedTuple):
    """How a victim was preempted when the scheduler could choose.

    Attributes:
        request: the victim, which has one sample.
        swaps: whether it was swapped out; if not, it is recomputed.
        blocks: blocks that it held.
        swap, recompute: costs of the two alternatives, in ticks.
    """

    request: EngineRequest
    swaps: bool
    blocks: int
    swap: int
    recompute: int


class Share(NamedTuple):
    """What one request computes in an iteration, if that does not follow from its length.

    Attributes:
        request: a request that runs in the iteration.
        order: its `SequenceGroup.order` at that time.
        computed: tokens computed before.
        tokens: tokens computed in this iteration, draft tokens included.
        drafts: how many of them are draft tokens.
        outputs: tokens that this iteration will generate for it; no decision looks at them.
        accepted: accepted draft tokens, including those after its last token; no decision looks at them.
    """

    request: EngineRequest
    order: int
    computed: int
    tokens: int
    drafts: int
    outputs: int
    accepted: int


class Batch:
    """One planned iteration; cost models see it as an `IterationShape`.

    Attributes:
        prompts: requests admitted in this iteration, whose prompt (or tokens to recompute) is prefilled.
        incomplete: those of ``prompts`` of which only a first chunk runs.
        completed: requests admitted earlier whose last chunk runs.
        chunks: prompt tokens computed, as (request, tokens), if memory frees blocks before a request ends.
        loading: requests that allocated the blocks into which their KV is loaded from a tier.
        resumed: requests that came back from the swap space.
        skipped: decoding requests that get no token because the token budget is used up.
        served_again: requests that were skipped before and get a token again.
        recomputed: preempted requests that lost their memory and wait again.
        swapped_out: requests that moved to the swap space.
        choices: how victims were preempted when the scheduler could choose.
        unschedulable: requests that can never continue, and why; they leave with the tokens they have.
        never_freed: requests whose memory was freed although the real engine would never free it.
        ignored: requests that the real engine drops when their turn comes.
        decodes: whether every running request gets a token; if not, prompts run alone and the others wait.
        launches: whether the model runs even if there is nothing to compute.
        counts_empty: whether a batch that computes and moves nothing still counts as an iteration of zero
            length if a request was preempted or ignored in it.
        reports: whether it tells the workers of finished requests, which alone makes it an iteration.
        sequences: sequences of the running requests.
        decoding: those of them that get a token and have had one before.
        discarded: decoding requests that have finished already, which was not known: their token is
            discarded.
        drafts: draft tokens to be verified.
        shares: what each request computes, in scheduling order; None if every decoding request computes a
            single token.
        batched_tokens: tokens as the scheduler's own limit counts them.
        tokens: tokens whose KV is computed, padding included.
        context_tokens: tokens of the running sequences whose KV exists once the iteration has run.
        decode_context: the part of ``context_tokens`` that belongs to decoding sequences.
        query_key_pairs: pairs of a query and a key that it attends to (causal), over all prompts.
        reached: tokens that decoding sequences read, per attention span; empty unless ``follows_reach``.
        reached_pairs: pairs of a query and a key in prompts, per attention span.
        computed_prompts: number of prompts, or chunks of them, that are computed.
        transfers: copies between the device and an offloading tier; None without such a tier.
        blocks_out, blocks_in, blocks_copied: blocks moved to the host and back, and copied on write.
        waited: ticks between pipeline stages, for the hand-over or because the later stage was busy.
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
        """Whether the batch counts as an iteration; if not, it takes no time and leaves no row."""
        if self.tokens or self.blocks_out or self.blocks_in or self.reports:
            return True
        return self.counts_empty and bool(self.ignored or self.recomputed)

    @property
    def sampled(self) -> int:
        """Number of positions at which a token is sampled: each sequence's last token and its drafts.

        Prompts that end in this iteration count once.
        """
        return self.decoding + self.drafts + len(self.prompts) - len(self.incomplete) + len(self.completed)

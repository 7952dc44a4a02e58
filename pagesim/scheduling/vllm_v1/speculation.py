"""Requests of vLLM v1 that do not decode in lockstep, because of draft tokens or pipeline stages."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from pagesim.kvcache import BlockManager
from pagesim.scheduling.batch import Batch, Share
from pagesim.scheduling.drafts import Speculation, accepted_of
from pagesim.scheduling.request import EngineRequest
from pagesim.scheduling.speculative_config import DraftRules
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Progress:
    """Progress of a request that has run, in tokens.

    Attributes:
        num_computed_tokens: tokens scheduled so far; draft tokens count as accepted until the outcome is
            known.
        num_output_placeholders: output and draft tokens expected from the batches in flight.
        num_drafts: draft tokens for its next step.
        num_inflight_tokens: its tokens in the batches in flight.
        num_stale_tokens: its tokens in flight that were scheduled before it was preempted.
        next_decode_eligible_step: first step in which it may decode even if its token is in flight.
        future: tokens known once nothing is in flight any more; no decision looks at it.
        stored: tokens whose KV is stored at that time, without rejected draft tokens.
        seed: random seed of its draws.
    """

    __slots__ = (
        "future",
        "next_decode_eligible_step",
        "num_computed_tokens",
        "num_drafts",
        "num_inflight_tokens",
        "num_output_placeholders",
        "num_stale_tokens",
        "seed",
        "stored",
    )

    def __init__(self, num_tokens: int, seed: int) -> None:
        self.future = num_tokens
        self.seed = seed
        self.next_decode_eligible_step = self.num_inflight_tokens = 0
        self.lose()

    def lose(self) -> None:
        """Reset the progress of a request that lost its memory."""
        self.num_stale_tokens = self.num_inflight_tokens
        self.num_computed_tokens = self.num_output_placeholders = self.num_drafts = 0
        self.num_inflight_tokens = self.stored = 0


@mypyc_attr(allow_interpreted_subclasses=True)
class Drafts:
    """State of `VllmV1`'s requests when each of them decodes apart from the others.

    Under speculative decoding, a request verifies draft tokens together with its last token. How many are
    accepted is drawn per request and step, whatever else runs. The request keeps the slots of rejected
    drafts. With two batches in flight, the second assumes that all drafts of the first are accepted.

    In a pipeline of P stages, more batches are in flight. Several of them may compute chunks of the same
    prompt. Under asynchronous scheduling a request decodes at most every P-th step, otherwise when its last
    token is known.

    Source: vLLM 0.33.0, v1/core/sched/scheduler.py and async_scheduler.py.

    Args:
        rules: scheduling rules of the drafting method; those for zero drafts without one.
        rates: probability, by position, that a draft is accepted if all before it are.
        memory: empty block manager.
        stages: number of pipeline stages.
        is_async: whether batches are scheduled before the output of the previous ones is known.
        max_model_len: maximum length of a sequence in tokens.
        in_flight: batches that are scheduled before the outcome of the first of them is known.

    Attributes:
        rules: scheduling rules of the drafting method.
        counts: outcome of the draft tokens.
        of: progress of requests that have run and not finished, by row.
    """

    def __init__(
        self,
        rules: DraftRules,
        rates: Sequence[float],
        memory: BlockManager,
        *,
        max_model_len: int,
        in_flight: int,
        stages: int,
        is_async: bool,
    ) -> None:
        self.rules = rules
        self._rates = rates
        self._is_async = is_async
        self._notes_chunks = memory.releases
        self._decode_interval = stages if stages > 1 and is_async else 0
        self._steps = 0  # number of planned steps
        self._in_flight = in_flight
        # With several groups, memory itself knows how many tokens have hashes.
        groups = len(memory.groups)
        self._hash_ahead = rules.hash_lookahead if groups == 1 else 0
        self._read_ahead = max(0, rules.prefill_lookahead - 1) if groups == 1 else 0
        self._max_model_len = max_model_len
        self.counts = Speculation()
        self.of: dict[int, Progress] = {}
        self._flights: deque[list[Share]] = deque()  # what each batch in flight computes
        self._shares: list[Share] = []  # what the current batch computes
        self._sampling: list[Progress] = []  # its requests that get a token
        self._scheduled_context = 0  # tokens of its requests that are computed once it has run
        self._padding = 0  # draft tokens of the waiting request being scheduled

    # Numbers of tokens and slots

    def most_slots(self, tokens: int) -> int:
        """Return the maximum number of slots of a sequence whose final length is ``tokens``."""
        ahead = self._in_flight * self.rules.num_speculative_tokens + self.rules.lookahead
        return min(tokens + ahead, self._max_model_len)

    def slots(self, tokens: int) -> int:
        """Return the slots that a request with ``tokens`` computed tokens needs."""
        return min(tokens + self.rules.lookahead, self._max_model_len)

    @property
    def may_starve(self) -> bool:
        """Whether a prompt chunk may be cut to zero tokens, as no module may read past the prompt."""
        return self.rules.prefill_lookahead > 1

    @property
    def is_in_flight(self) -> bool:
        """Whether the output of any scheduled tokens is still to come."""
        return any(self._flights)

    @property
    def slots_taken(self) -> int:
        """Tokens of the step's budget that the current batch uses for its drafter."""
        return self.rules.draft_slots * len(self._shares)

    def within_chunk(self, request: EngineRequest, num_computed_tokens: int, tokens: int) -> int:
        """Return ``tokens``, cut so that the rest of the prompt is empty or covers the drafter's reads."""
        ahead, left = self.rules.prefill_lookahead, request.length - num_computed_tokens - tokens
        return max(0, tokens - (ahead - left)) if 0 < left < ahead else tokens

    def num_due(self, request: EngineRequest) -> int:
        """Return the tokens of a running request's next step; 0 or less if its last one is in flight."""
        progress = self.of[request.row]
        if self._steps < progress.next_decode_eligible_step:
            return 0
        computed, placeholders = progress.num_computed_tokens, progress.num_output_placeholders
        if placeholders and computed + 2 - placeholders >= request.final_length:
            return 0
        tokens = request.length + progress.num_drafts + placeholders - computed
        return min(tokens, self._max_model_len - computed - 1)

    def is_stale(self, request: EngineRequest) -> bool:
        """Return whether a waiting request, just preempted, is still in a batch in flight."""
        progress = self.of.get(request.row)
        return progress is not None and progress.num_stale_tokens > 0

    def padded(self, tokens: int, num_computed_tokens: int, token_budget: int, *, is_padded: bool) -> int:
        """Return the tokens of a waiting request's first step, given that ``tokens`` remain to be computed.

        A single remaining token gets draft tokens, like a decode. It gets none if a prompt chunk runs in the
        same step; a prompt's very first token gets them only next to requests admitted in an earlier step.

        Args:
            tokens: its tokens that are not computed.
            num_computed_tokens: its tokens that were cached.
            token_budget: tokens left in the step's budget.
            is_padded: whether these conditions for draft tokens hold.

        Returns:
            Number of tokens; 0 if the budget does not suffice for the draft tokens.
        """
        drafts = self.rules.num_speculative_tokens
        self._padding = 0
        if tokens > 1 or not is_padded or num_computed_tokens + 2 + drafts > self._max_model_len:
            return tokens
        if self.rules.by_batch:
            return tokens
        if 1 + drafts > token_budget:
            return 0
        self._padding = drafts
        return 1 + drafts

    def clipped(self, tokens: int) -> int:
        """Return the tokens of the request of `padded` after its chunk was cut to ``tokens``."""
        if self._padding and 0 < tokens <= self._padding:
            self._padding = 0
            return 1
        return tokens

    def uncommitted(self, request: EngineRequest, num_computed_tokens: int, slots: int) -> int:
        """Return how many of a request's slots have no hash once ``num_computed_tokens`` are computed."""
        committed = min(num_computed_tokens, request.length) - self._read_ahead
        return slots - max(0, min(committed, request.length - self._hash_ahead))

    # Life of a request

    def start(self, request: EngineRequest, num_computed_tokens: int, seed: int) -> None:
        """Start a request of which ``num_computed_tokens`` tokens are computed or cached."""
        progress = self.of.get(request.row)
        if progress is None:
            progress = self.of[request.row] = Progress(request.length, seed)
        progress.num_computed_tokens = progress.stored = num_computed_tokens
        progress.num_drafts = self._padding

    def schedule(self, request: EngineRequest, tokens: int, batch: Batch, *, decodes: bool) -> bool:
        """Schedule tokens of a request, some of them draft tokens, for which it has slots.

        Args:
            request: the request.
            tokens: tokens that it computes in the step.
            batch: the current step.
            decodes: whether it was running before with its prefill complete.

        Returns:
            Whether its prefill is complete with this step.
        """
        progress = self.of[request.row]
        before, known = progress.num_computed_tokens, request.length + progress.num_output_placeholders
        stored = progress.stored
        drafts = min(max(0, before + tokens - known), progress.num_drafts)
        progress.num_computed_tokens += tokens
        progress.num_inflight_tokens += tokens
        self._note_in_flight(request, progress)
        progress.num_drafts = outputs = accepted = 0
        is_whole = progress.num_computed_tokens >= known
        if is_whole:
            outputs, accepted = self._draw(request, progress, drafts)
            self._sampling.append(progress)
            progress.next_decode_eligible_step = self._steps + self._decode_interval
            if self._is_async:
                progress.num_output_placeholders += 1 + drafts
        else:
            progress.stored += tokens
        if self._notes_chunks:
            batch.chunks += ((request, progress.stored - stored),)
        batch.batched_tokens += tokens
        batch.drafts += drafts
        self._scheduled_context += progress.num_computed_tokens
        if decodes:
            batch.decoding += 1
            batch.decode_context += progress.num_computed_tokens
        else:
            own = tokens - drafts
            batch.query_key_pairs += own * before + own * (own + 1) // 2
        self._shares.append(Share(request, request.order, before, tokens, drafts, outputs, accepted))
        return is_whole

    def note_computed(self, requests: Iterable[EngineRequest], computed: dict[EngineRequest, int]) -> None:
        """Enter into ``computed`` how many tokens of each request are computed before the current step."""
        computed.update({request: self.of[request.row].num_computed_tokens for request in requests})
        computed.update({share.request: share.computed for share in self._shares})

    def close(self, batch: Batch) -> None:
        """End a plan and record what each request computes in it."""
        self._steps += 1
        drafts = self.rules.drafts_after(len(self._shares))
        for progress in self._sampling:
            progress.num_drafts = drafts
        self._sampling = []
        batch.context_tokens, self._scheduled_context = self._scheduled_context, 0
        batch.shares, self._shares = self._shares, []
        if self._in_flight == 1:
            self._flights.clear()
        if batch.tokens or not batch.unschedulable:
            self._flights.append(batch.shares)  # otherwise another plan follows at once

    def next_output(self) -> list[Share]:
        """Return what the oldest batch in flight, whose output is now available, computed."""
        return self._flights.popleft() if self._flights else []

    def update_from_output(self, share: Share, *, runs: bool) -> bool:
        """Record a request's output, and subtract rejected draft tokens from its computed tokens.

        Args:
            share: the request's share in the batch whose output is available.
            runs: whether it has kept its slot since.

        Returns:
            Whether it has new tokens; False if it had finished before.
        """
        request, outputs, progress = share.request, share.outputs, self.of.get(share.request.row)
        self.counts.note(share.drafts, 0 if progress is None else max(0, outputs - 1))
        if progress is None:
            return False
        self.counts.outputs += outputs
        if outputs:
            self.counts.verified += share.accepted
        request.length += outputs
        if not runs:
            progress.num_stale_tokens -= share.tokens
            return outputs > 0
        progress.num_inflight_tokens -= share.tokens
        self._note_in_flight(request, progress)
        if not outputs:
            return False
        progress.num_computed_tokens -= 1 + share.drafts - outputs
        if self._is_async:
            progress.num_output_placeholders -= 1 + share.drafts
        self._note_in_flight(request, progress)
        processed = request.tokens - request.inflight_tokens
        request.uncommitted_tokens = self.uncommitted(request, processed, request.tokens)
        return True

    def _note_in_flight(self, request: EngineRequest, progress: Progress) -> None:
        """Record how many of a request's slots are not computed yet."""
        request.inflight_tokens = request.tokens - (
            progress.num_computed_tokens - progress.num_inflight_tokens
        )

    def _draw(self, request: EngineRequest, progress: Progress, drafts: int) -> tuple[int, int]:
        """Draw the number of tokens that a step will generate and of draft tokens accepted.

        Returns:
            The generated tokens, 0 if the request will have finished before; and the accepted draft tokens,
            including those after its last token.
        """
        future, missing = progress.future, request.final_length - progress.future
        if missing <= 0:
            return 0, 0
        accepted = accepted_of(drafts, self._rates, progress.seed + future - request.prompt) if drafts else 0
        outputs = min(1 + accepted, missing)
        progress.future = future + outputs
        progress.stored = progress.future - 1
        return outputs, accepted

"""Requests of vLLM v1 that do not decode in step: because they verify drafts, or run through a pipeline."""

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
    """How far a request is that has run, in tokens.

    Attributes:
        num_computed_tokens: those for which a batch was made, drafts counted as if all were accepted until it
            is known.
        num_output_placeholders: output and drafts of the batches in flight that give it tokens.
        num_drafts: that it has for its next step.
        num_inflight_tokens: its tokens in the batches in flight.
        num_stale_tokens: those of them that were computed before it lost its place.
        next_decode_eligible_step: the step from which on it may decode though its token is in flight.
        future: what is known of it when nothing is in flight any more. No decision looks at it.
        stored: tokens whose KV is stored then, rejected drafts left out.
        seed: of its draws.
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
        """Forget what was computed: the request lost its memory."""
        self.num_stale_tokens = self.num_inflight_tokens
        self.num_computed_tokens = self.num_output_placeholders = self.num_drafts = 0
        self.num_inflight_tokens = self.stored = 0


@mypyc_attr(allow_interpreted_subclasses=True)
class Drafts:
    """What `VllmV1` knows of its requests where each decodes by itself.

    Under speculative decoding one computes drafts beside its last token. How many of them are accepted is
    drawn for each request and each of its steps, whatever runs beside it. Slots of drafts that are rejected
    stay its own. Two batches in flight assume that all drafts of the first are accepted.

    In a pipeline of P stages more batches are in flight. Of a request several may compute a chunk of its
    prompt. It decodes in every P-th step at most, under asynchronous scheduling; without, when its last token
    is known.

    Source: vLLM 0.33.0, v1/core/sched/scheduler.py and async_scheduler.py.

    Args:
        rules: the numbers of the method; those of none where nothing drafts.
        rates: the probability of each draft to be accepted if all before it are, by position.
        memory: empty.
        stages: of the pipeline.
        is_async: whether batches are scheduled before the output of those before is known.
        max_model_len: tokens; no sequence is longer.
        in_flight: batches that are scheduled before the outcome of the first of them is known.

    Attributes:
        rules: the numbers of the method.
        counts: what became of the drafts.
        of: the progress of requests that have run and are not over, by row.
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
        self._steps = 0  # that were planned
        self._in_flight = in_flight
        # Of several groups, memory knows itself for how many tokens there are hashes.
        groups = len(memory.groups)
        self._hash_ahead = rules.hash_lookahead if groups == 1 else 0
        self._read_ahead = max(0, rules.prefill_lookahead - 1) if groups == 1 else 0
        self._max_model_len = max_model_len
        self.counts = Speculation()
        self.of: dict[int, Progress] = {}
        self._flights: deque[list[Share]] = deque()  # of each batch in flight what it computes
        self._shares: list[Share] = []  # what the batch at hand computes
        self._sampling: list[Progress] = []  # who of them gets a token
        self._scheduled_context = 0  # tokens that its requests have computed once it has run
        self._padding = 0  # drafts of the waiting request at hand

    # How many tokens and slots

    def most_slots(self, tokens: int) -> int:
        """Return the slots that a sequence takes at most that is so long in the end."""
        ahead = self._in_flight * self.rules.num_speculative_tokens + self.rules.lookahead
        return min(tokens + ahead, self._max_model_len)

    def slots(self, tokens: int) -> int:
        """Return the slots that a request takes which has computed so many tokens."""
        return min(tokens + self.rules.lookahead, self._max_model_len)

    @property
    def may_starve(self) -> bool:
        """Whether a chunk of a prompt may have no token left, as no module may read past the prompt."""
        return self.rules.prefill_lookahead > 1

    @property
    def is_in_flight(self) -> bool:
        """Whether the output of any request's tokens is to come."""
        return any(self._flights)

    @property
    def slots_taken(self) -> int:
        """Tokens of the step's budget that the batch at hand takes for its drafter."""
        return self.rules.draft_slots * len(self._shares)

    def within_chunk(self, request: EngineRequest, num_computed_tokens: int, tokens: int) -> int:
        """Return so many tokens, or fewer: a chunk leaves what the drafter reads behind it, or nothing."""
        ahead, left = self.rules.prefill_lookahead, request.length - num_computed_tokens - tokens
        return max(0, tokens - (ahead - left)) if 0 < left < ahead else tokens

    def num_due(self, request: EngineRequest) -> int:
        """Return the tokens of a running request's next step; 0 or fewer where its last one is in flight."""
        progress = self.of[request.row]
        if self._steps < progress.next_decode_eligible_step:
            return 0
        computed, placeholders = progress.num_computed_tokens, progress.num_output_placeholders
        if placeholders and computed + 2 - placeholders >= request.final_length:
            return 0
        tokens = request.length + progress.num_drafts + placeholders - computed
        return min(tokens, self._max_model_len - computed - 1)

    def is_stale(self, request: EngineRequest) -> bool:
        """Say whether a waiting request is in a batch in flight, as it lost its place just now."""
        progress = self.of.get(request.row)
        return progress is not None and progress.num_stale_tokens > 0

    def padded(self, tokens: int, num_computed_tokens: int, token_budget: int, *, is_padded: bool) -> int:
        """Return the tokens of a waiting request's first step, where it has so many to compute.

        A single one has drafts beside it, as those that decode: not beside a chunk of a prompt, and a
        prompt's first token only beside requests that were admitted in an earlier step.

        Args:
            tokens: of it that are not computed.
            num_computed_tokens: those that were found.
            token_budget: tokens that are left of the step's.
            is_padded: whether such requests, and no chunk of a prompt, run beside it.

        Returns:
            The tokens; 0 where the budget does not suffice for the drafts.
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
        """Return the tokens of the waiting request of `padded`, of which so many are left of a chunk."""
        if self._padding and 0 < tokens <= self._padding:
            self._padding = 0
            return 1
        return tokens

    def uncommitted(self, request: EngineRequest, num_computed_tokens: int, slots: int) -> int:
        """Return how many of a request's slots no hash covers, once it has computed so many tokens."""
        committed = min(num_computed_tokens, request.length) - self._read_ahead
        return slots - max(0, min(committed, request.length - self._hash_ahead))

    # What becomes of requests

    def start(self, request: EngineRequest, num_computed_tokens: int, seed: int) -> None:
        """Let a request run, of which so many tokens are computed, or were found."""
        progress = self.of.get(request.row)
        if progress is None:
            progress = self.of[request.row] = Progress(request.length, seed)
        progress.num_computed_tokens = progress.stored = num_computed_tokens
        progress.num_drafts = self._padding

    def schedule(self, request: EngineRequest, tokens: int, batch: Batch, *, decodes: bool) -> bool:
        """Let a request compute so many tokens, some of them drafts, for which it has slots.

        Args:
            request: which.
            tokens: of the step.
            batch: the step.
            decodes: whether it ran before, and its prompt has run whole.

        Returns:
            Whether its prompt has run whole with this step.
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
        """Note of requests how many of their tokens are computed before the step at hand."""
        computed.update({request: self.of[request.row].num_computed_tokens for request in requests})
        computed.update({share.request: share.computed for share in self._shares})

    def close(self, batch: Batch) -> None:
        """End a plan: note what each request computes in it."""
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
            self._flights.append(batch.shares)  # else another plan is made at once

    def next_output(self) -> list[Share]:
        """Return what the oldest batch in flight computed, whose output is there."""
        return self._flights.popleft() if self._flights else []

    def update_from_output(self, share: Share, *, runs: bool) -> bool:
        """Note what a request computed and got, and take back what it has computed of rejected drafts.

        Args:
            share: of the request in the batch whose output is there.
            runs: whether it has kept its place since.

        Returns:
            Whether it has new tokens; not where it was over before.
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
        """Note how many of a request's slots are not computed yet."""
        request.inflight_tokens = request.tokens - (
            progress.num_computed_tokens - progress.num_inflight_tokens
        )

    def _draw(self, request: EngineRequest, progress: Progress, drafts: int) -> tuple[int, int]:
        """Draw the tokens that a step is going to give, and the drafts that are accepted.

        Returns:
            The tokens, none where the request is over before; and the drafts, those included that come after
            its last token.
        """
        future, missing = progress.future, request.final_length - progress.future
        if missing <= 0:
            return 0, 0
        accepted = accepted_of(drafts, self._rates, progress.seed + future - request.prompt) if drafts else 0
        outputs = min(1 + accepted, missing)
        progress.future = future + outputs
        progress.stored = progress.future - 1
        return outputs, accepted

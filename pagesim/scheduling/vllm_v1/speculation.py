"""Requests of vLLM v1 that do not decode in step: because they verify drafts, or run through a pipeline."""

from __future__ import annotations

from collections import deque

from pagesim.errors import PagesimError
from pagesim.kvcache import BlockManager
from pagesim.scheduling.batch import Batch, Share
from pagesim.scheduling.drafts import Speculation, accepted_of
from pagesim.scheduling.request import EngineRequest
from pagesim.scheduling.vllm_v1_options import VllmV1Options
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Progress:
    """How far a request is that has run, in tokens.

    Attributes:
        num_tokens: its prompt and the output that is there.
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
        "num_tokens",
        "seed",
        "stored",
    )

    def __init__(self, num_tokens: int, seed: int) -> None:
        self.num_tokens = self.future = num_tokens
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

    In a pipeline of P stages there are no drafts, and more batches are in flight. Of a request several may
    compute a chunk of its prompt. It decodes in every P-th step at most, under asynchronous scheduling;
    without, when its last token is known.

    Source: vLLM 0.33.0, v1/core/sched/scheduler.py and async_scheduler.py.

    Args:
        options: with ``speculative_tokens``, ``acceptance`` and ``speculative_method``; and with
            ``pipeline_parallel_size`` and ``async_scheduling``.
        memory: under drafts of one KV group of full attention.
        max_model_len: tokens; no sequence is longer.
        in_flight: batches that are scheduled before the outcome of the first of them is known.
        hash_ahead: tokens behind a block that its hash covers.

    Raises:
        PagesimError: the model has other layers.

    Attributes:
        counts: what became of the drafts.
        of: the progress of requests that have run and are not over, by row.
    """

    def __init__(
        self,
        options: VllmV1Options,
        memory: BlockManager,
        *,
        max_model_len: int,
        in_flight: int,
        hash_ahead: int,
    ) -> None:
        self._num_speculative_tokens = drafts = options.speculative_tokens or 0
        if drafts and not memory.is_plain:
            raise PagesimError("speculative_tokens needs a model of full attention only")
        self._acceptance = options.acceptance or 0.0
        self._is_async = bool(options.async_scheduling)
        self._releases = memory.releases
        stages = options.pipeline_parallel_size or 1
        self._decode_interval = stages if stages > 1 and self._is_async else 0
        self._steps = 0  # that were planned
        self._lookahead = drafts if options.speculative_method == "eagle3" else 0  # slots of the draft model
        self._in_flight = in_flight
        self._ahead = in_flight * drafts + self._lookahead
        self._hash_ahead = hash_ahead
        self._max_model_len = max_model_len
        self.counts = Speculation()
        self.of: dict[int, Progress] = {}
        self._flights: deque[list[Share]] = deque()  # of each batch in flight what it computes
        self._shares: list[Share] = []  # what the batch at hand computes
        self._scheduled_context = 0  # tokens that its requests have computed once it has run
        self._padding = 0  # drafts of the waiting request at hand

    # How many tokens and slots

    def most_slots(self, tokens: int) -> int:
        """Return the slots that a sequence takes at most that is so long in the end."""
        return min(tokens + self._ahead, self._max_model_len)

    def slots(self, tokens: int) -> int:
        """Return the slots that a request takes which has computed so many tokens."""
        return min(tokens + self._lookahead, self._max_model_len)

    def num_due(self, request: EngineRequest) -> int:
        """Return the tokens of a running request's next step; 0 or fewer where its last one is in flight."""
        progress = self.of[request.row]
        if self._steps < progress.next_decode_eligible_step:
            return 0
        computed, placeholders = progress.num_computed_tokens, progress.num_output_placeholders
        if placeholders and computed + 2 - placeholders >= request.final_length:
            return 0
        tokens = progress.num_tokens + progress.num_drafts + placeholders - computed
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
        drafts = self._num_speculative_tokens
        self._padding = 0
        if tokens > 1 or not is_padded or num_computed_tokens + 2 + drafts > self._max_model_len:
            return tokens
        if 1 + drafts > token_budget:
            return 0
        self._padding = drafts
        return 1 + drafts

    def uncommitted(self, request: EngineRequest, num_computed_tokens: int, slots: int) -> int:
        """Return how many of a request's slots no hash covers, once it has computed so many tokens."""
        progress = self.of.get(request.row)
        known = request.length if progress is None else progress.num_tokens
        return slots - min(num_computed_tokens, known - self._hash_ahead)

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
        before, known = progress.num_computed_tokens, progress.num_tokens + progress.num_output_placeholders
        drafts = min(max(0, before + tokens - known), progress.num_drafts)
        progress.num_computed_tokens += tokens
        progress.num_inflight_tokens += tokens
        request.inflight_tokens = progress.num_inflight_tokens
        if self._releases:
            batch.chunks += ((request, tokens),)
        progress.num_drafts = outputs = 0
        is_whole = progress.num_computed_tokens >= known
        if is_whole:
            outputs = self._draw(request, progress, drafts)
            progress.num_drafts = self._num_speculative_tokens
            progress.next_decode_eligible_step = self._steps + self._decode_interval
            if self._is_async:
                progress.num_output_placeholders += 1 + drafts
        else:
            progress.stored += tokens
        batch.batched_tokens += tokens
        batch.drafts += drafts
        self._scheduled_context += progress.num_computed_tokens
        if decodes:
            batch.decoding += 1
            batch.decode_context += progress.num_computed_tokens
        else:
            own = tokens - drafts
            batch.query_key_pairs += own * before + own * (own + 1) // 2
        self._shares.append(Share(request, request.order, before, tokens, drafts, outputs))
        return is_whole

    def close(self, batch: Batch) -> None:
        """End a plan: note what each request computes in it."""
        self._steps += 1
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
        progress.num_tokens += outputs
        if not runs:
            progress.num_stale_tokens -= share.tokens
            request.length = progress.num_tokens
            return outputs > 0
        progress.num_inflight_tokens -= share.tokens
        request.inflight_tokens = progress.num_inflight_tokens
        if not outputs:
            return False
        progress.num_computed_tokens -= 1 + share.drafts - outputs
        if self._is_async:
            progress.num_output_placeholders -= 1 + share.drafts
        request.uncommitted_tokens = request.tokens - (
            progress.num_computed_tokens - progress.num_inflight_tokens
        )
        return True

    def _draw(self, request: EngineRequest, progress: Progress, drafts: int) -> int:
        """Draw the tokens that a step is going to give; none where the request is over before."""
        future, missing = progress.future, request.final_length - progress.future
        outputs = 1
        if drafts and missing > 1:
            outputs += accepted_of(drafts, self._acceptance, progress.seed + future - request.prompt)
        outputs = min(outputs, missing)
        if outputs:
            progress.future = future + outputs
            progress.stored = progress.future - 1
        return outputs

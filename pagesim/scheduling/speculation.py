"""vLLM v1 with speculative decoding: a step verifies drafts, and those that are right are output."""

from __future__ import annotations

from collections import deque
from typing import Any

from pagesim.errors import PagesimError
from pagesim.kvcache import KVCache
from pagesim.scheduling.batch import Batch, Share
from pagesim.scheduling.drafts import Speculation, accepted_of
from pagesim.scheduling.request import EngineRequest, Status
from pagesim.scheduling.vllm_v1 import VllmV1
from pagesim.scheduling.vllm_v1_options import VllmV1Options


class Progress:
    """How far a request is that has run, in tokens.

    Attributes:
        known: its prompt and the output that is there.
        computed: those for which a batch was made, drafts counted as if all were accepted until it is known.
        placeholders: output and drafts of the batches in flight that give it tokens.
        drafts: that it has for its next step.
        in_flight: its tokens in the batches in flight.
        future: what is known of it when nothing is in flight any more. No decision looks at it.
        stored: tokens whose KV is stored then, rejected drafts left out.
        seed: of its draws.
    """

    __slots__ = ("computed", "drafts", "future", "in_flight", "known", "placeholders", "seed", "stored")

    def __init__(self, known: int, seed: int) -> None:
        self.known = self.future = known
        self.seed = seed
        self.lose()

    def lose(self) -> None:
        """Forget what was computed: the request lost its memory."""
        self.computed = self.placeholders = self.drafts = self.in_flight = self.stored = 0


class SpeculativeV1(VllmV1):
    """As `VllmV1`, where a decoding request computes drafts beside its last token.

    How many of them are accepted is drawn for each request and each of its steps, whatever runs beside it. A
    request always rests in memory: it is extended by the slots of its tokens and drafts, and slots of drafts
    that are rejected stay its own. Two batches in flight assume that all drafts of the first are accepted.

    Source: vLLM 0.33.0, v1/core/sched/scheduler.py and async_scheduler.py.

    Args:
        memory: empty, of one KV group of full attention.
        options: with ``speculative_tokens``, ``acceptance`` and ``speculative_method``.
        max_model_len: tokens; no sequence is longer.
        others: as `VllmV1`.
    """

    __slots__ = (
        "_flights",
        "_padding",
        "_progress",
        "_runs_any",
        "_runs_prompts",
        "_scheduled_context",
        "_shares",
        "_speculation",
        "acceptance",
        "drafts",
        "hash_ahead",
        "lookahead",
    )

    def __init__(self, memory: KVCache, options: VllmV1Options, *, max_model_len: int, **others: Any) -> None:
        super().__init__(memory, options, max_model_len=max_model_len, **others)
        assert options.speculative_tokens is not None
        assert options.acceptance is not None
        if not memory.is_plain:
            raise PagesimError("speculative_tokens needs a model of full attention only")
        self.drafts = options.speculative_tokens
        self.acceptance = options.acceptance
        # Slots that the draft model writes to, and tokens behind a block that its hash covers.
        self.lookahead = self.drafts if options.speculative_method == "eagle3" else 0
        self.hash_ahead = self.hash_lookahead(options)
        self.speculation = self._speculation = Speculation()
        self._progress: dict[int, Progress] = {}  # by row, of requests that have run and are not over
        self._flights: deque[list[Share]] = deque()  # of each batch in flight what it computes
        self._shares: list[Share] = []  # the same of the batch at hand
        self._scheduled_context = 0  # tokens that its requests have computed once it has run
        # Whether it runs requests that were admitted before, and chunks of such.
        self._runs_any = self._runs_prompts = False
        self._padding = 0  # drafts of the waiting request at hand

    def refusal(self, prompt_tokens: int, output_tokens: int, samples: int) -> str:
        refusal = super().refusal(prompt_tokens, output_tokens, samples)
        ahead = self.in_flight * self.drafts + self.lookahead
        most = min(prompt_tokens + output_tokens - 1 + ahead, self.max_model_len)
        return refusal or ("" if self.memory.blocks_for(most) <= self.memory.num_blocks else self.no_room())

    def stored_length(self, request: EngineRequest) -> int:
        return self._progress[request.row].stored

    def plan(self, now: int) -> Batch:
        self._shares = []
        self._scheduled_context = 0
        self._runs_any = self._runs_prompts = False
        batch = super().plan(now)
        batch.context_tokens = self._scheduled_context
        batch.shares = self._shares
        if self.in_flight == 1:
            self._flights.clear()
        if batch.tokens or not batch.stuck:
            self._flights.append(self._shares)
        return batch

    # Running requests

    def _schedule_together(self, batch: Batch, budget: int) -> bool:
        return False  # what each of them computes differs

    def _schedule_running(self, batch: Batch, budget: int) -> None:
        memory = self.memory
        order = list(self.running.values())
        served: dict[EngineRequest, tuple[int, int]] = {}  # tokens, and how many of them are drafts
        place = 0
        while place < len(order) and budget > 0:
            request = order[place]
            progress = self._progress[request.row]
            tokens = self._due(request, progress, budget)
            if tokens <= 0:
                place += 1
                continue
            slots = max(request.tokens, self._slots(progress.computed + tokens))
            while memory.blocks_to_extend(request, slots - request.tokens) > memory.free_blocks:
                victim = self._victim(order)
                at = order.index(victim) if self.by_priority else len(order) - 1
                del order[at]
                if at < place:
                    place -= 1
                budget += served.pop(victim, (0, 0))[0]
                self.preempt(victim, batch)
                if victim is request:
                    break
            else:
                drafts = progress.computed + tokens - progress.known - progress.placeholders
                served[request] = tokens, min(max(0, drafts), progress.drafts)
                self.events.interval_ended(request)
                self._extend_slots(request, slots, progress.computed + tokens)
                budget -= tokens
                place += 1
        self._runs_any = bool(served)
        self._runs_prompts = any(request.order in self._in_chunks for request in served)
        for request, (tokens, drafts) in served.items():
            self._schedule(request, tokens, drafts, batch, runs=True)

    def _due(self, request: EngineRequest, progress: Progress, budget: int) -> int:
        """Return the tokens of a running request's next step; 0 or fewer where its last one is in flight."""
        placeholders = progress.placeholders
        if placeholders and progress.computed + 2 - placeholders >= request.final_length:
            return 0
        tokens = progress.known + progress.drafts + placeholders - progress.computed
        return min(self._capped(tokens, budget), self.max_model_len - progress.computed - 1)

    def _slots(self, tokens: int) -> int:
        """Return the slots that a request takes which has computed so many tokens."""
        return min(tokens + self.lookahead, self.max_model_len)

    def _extend_slots(self, request: EngineRequest, slots: int, computed: int) -> None:
        """Let a request have so many slots; what is known of its tokens can be found."""
        known = self._progress[request.row].known - self.hash_ahead
        self.context += slots - request.tokens
        request.unknown = slots - min(computed, known)
        self._extend(request, slots - request.tokens)

    def _schedule(
        self, request: EngineRequest, tokens: int, drafts: int, batch: Batch, *, runs: bool
    ) -> None:
        """Let a request compute so many tokens, some of them drafts, for which it has slots."""
        progress = self._progress[request.row]
        before = progress.computed
        decodes = runs and request.order not in self._in_chunks
        progress.computed += tokens
        progress.in_flight += tokens
        progress.drafts = outputs = 0
        if progress.computed < progress.known + progress.placeholders:
            self._in_chunks[request.order] = request
            progress.stored += tokens
        else:
            if self._in_chunks.pop(request.order, None) is not None:
                batch.completed += (request,)
            outputs = self._draw(request, progress, drafts)
            progress.drafts = self.drafts
            if self.in_flight > 1:
                progress.placeholders += 1 + drafts
        batch.batched_tokens += tokens
        batch.drafts += drafts
        self._scheduled_context += progress.computed
        if decodes:
            batch.decoding += 1
            batch.decode_context += progress.computed
        else:
            own = tokens - drafts
            batch.query_key_pairs += own * before + own * (own + 1) // 2
        self._shares.append(Share(request, request.order, before, tokens, drafts, outputs))

    def _draw(self, request: EngineRequest, progress: Progress, drafts: int) -> int:
        """Draw the tokens that a step is going to give; none where the request is over before."""
        future, missing = progress.future, request.final_length - progress.future
        outputs = 1
        if drafts and missing > 1:
            outputs += accepted_of(drafts, self.acceptance, progress.seed + future - request.prompt)
        outputs = min(outputs, missing)
        if outputs:
            progress.future = future + outputs
            progress.stored = progress.future - 1
        return outputs

    # Waiting requests

    def _num_new_tokens(self, request: EngineRequest, start: int, budget: int) -> int:
        """As its parent; what has a single token to compute has drafts beside it, as those that decode.

        Not beside a chunk of a prompt, and a prompt's first token only beside requests that were admitted in
        an earlier iteration: those of this one are not looked at.
        """
        tokens = request.length - start
        self._padding = 0
        room = self.max_model_len - start - 1
        is_padded = not self._runs_prompts and (self._runs_any or start > 0)
        if tokens > 1 or not is_padded or 1 + self.drafts > room:
            return super()._num_new_tokens(request, start, budget)
        if 1 + self.drafts > budget:
            return 0
        self._padding = self.drafts
        return self._capped(1 + self.drafts, budget)

    def _fits(self, request: EngineRequest, tokens: int) -> bool:
        slots = max(self._slots(tokens), request.length if self.full_isl else 0)
        return self.memory.can_admit(request, slots, self.watermark_blocks if self.running else 0)

    def _take_memory(self, request: EngineRequest, tokens: int) -> None:
        super()._take_memory(request, min(tokens, request.length - self.hash_ahead))

    def _compute(self, request: EngineRequest, tokens: int, batch: Batch) -> None:
        """Run the first tokens of a request that was just admitted."""
        row, computed = request.row, request.cached
        progress = self._progress.get(row)
        if progress is None:
            seed = self.queue.arrivals.draw_seed(request.index)
            progress = self._progress[row] = Progress(request.length, seed)
        progress.computed = progress.stored = computed
        slots = self._slots(computed + tokens)
        self.context += request.tokens - computed - tokens
        self._extend_slots(request, slots, computed + tokens)
        drafts = min(self._padding, tokens - 1)
        self._schedule(request, tokens, drafts, batch, runs=False)

    # What becomes of them

    def preempt(self, request: EngineRequest, batch: Batch, given: int = 0) -> None:
        super().preempt(request, batch)
        progress = self._progress[request.row]
        progress.lose()
        request.length = progress.known

    def finish(self, now: int) -> list[EngineRequest]:
        shares = self._flights.popleft() if self._flights else []
        progresses = self._progress
        answered = [share.request for share in shares if share.outputs and share.request.row in progresses]
        if answered:
            self.events.answered(answered, now)
        over: list[EngineRequest] = []
        for share in shares:
            request, outputs = share.request, share.outputs
            progress = progresses.get(request.row)
            self._speculation.note(share.drafts, 0 if progress is None else max(0, outputs - 1))
            if progress is None:
                continue  # it was over before
            if request.order != share.order or request.order not in self.running:
                self._answer_waiting(request, progress, outputs, now, over)
                continue
            progress.in_flight -= share.tokens
            if not outputs:
                continue
            progress.known += outputs
            progress.computed -= 1 + share.drafts - outputs
            if self.in_flight > 1:
                progress.placeholders -= 1 + share.drafts
            request.unknown = request.tokens - (progress.computed - progress.in_flight)
            if progress.known < request.final_length:
                self.memory.cache_full_blocks(request)
            else:
                self._over(request, now)
                over.append(request)
        return over

    def _answer_waiting(
        self, request: EngineRequest, progress: Progress, outputs: int, now: int, over: list[EngineRequest]
    ) -> None:
        """Note what a batch gave to a request that lost its place while the batch was in flight."""
        request.length = progress.known = progress.known + outputs
        if progress.known < request.final_length:
            return
        del self._progress[request.row]
        self.queue.abort(request.row)
        self.events.left(request.row, now, Status.FINISHED)
        self.unreported = True
        over.append(request)

    def _over(self, request: EngineRequest, now: int) -> None:
        super()._over(request, now)
        del self._progress[request.row]

    def abort(self, row: int, now: int) -> int:
        generated = super().abort(row, now)
        self._progress.pop(row, None)
        return generated

    def _abort_running(self, request: EngineRequest) -> int:
        super()._abort_running(request)
        return self._progress[request.row].known - request.prompt

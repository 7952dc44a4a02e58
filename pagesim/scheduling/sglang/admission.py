"""Admission under SGLang: which prompts run in an iteration, and how much of them.

Source: SGLang 0.5.23, ``Scheduler._get_new_batch_prefill_raw`` and ``PrefillAdder``.
"""

from __future__ import annotations

from pagesim.scheduling.batch import Batch
from pagesim.scheduling.request import EngineRequest
from pagesim.scheduling.sglang.budget import CLIP, Budget, Verdict
from pagesim.scheduling.sglang.decoding import DecodingSglang
from pagesim.scheduling.sglang.future import KnownFuture, Stay
from pagesim.scheduling.sglang.order import QueueOrder, uncached
from pagesim.scheduling.sglang.queue import SglangQueue
from pagesim.scheduling.sglang.request import SglangRequest
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class AdmittingSglang(DecodingSglang):
    """What `Sglang` does for requests that wait.

    Attributes:
        entries: the queue, by its own type.
        order: sorts the queue.
        chunk: tokens that prompts compute in an iteration; None where they are not cut.
        mixes: whether the running batch decodes beside prompts.
        max_prefill_tokens: tokens of prompts that are admitted to an iteration.
        most_prompts: prompts in an iteration at most.
        spares_shorter: whether only one prompt at a time runs in chunks, since shorter ones come first.
    """

    __slots__ = ("chunk", "entries", "max_prefill_tokens", "mixes", "most_prompts", "order", "spares_shorter")

    entries: SglangQueue
    order: QueueOrder
    chunk: int | None
    mixes: bool
    max_prefill_tokens: int
    most_prompts: int | None
    spares_shorter: bool

    def prefill(self, batch: Batch) -> bool:
        """Let prompts run, if any can; say whether any does."""
        if not self.batch or self.pools.retries:
            self.is_full = False
        if (self.is_full or not self.queue.waiting) and self.chunked is None:
            return False
        if self.chunked is None and len(self.running) >= self.max_running_requests:
            self.is_full = True  # also of requests whose last token is in flight
            return False
        self.order.sort()
        prompts = self._admit()
        if not prompts:
            return False
        self._run_prompts(prompts, batch)
        return True

    # Who runs

    def _admit(self) -> list[SglangRequest]:
        """Return the requests of which a prompt, or a chunk, runs, with what is found for them held."""
        beside = len(self.batch) if self.mixes else 0
        ratio = 1.0 if self.ignores_stops else self.new_token_ratio
        budget = self.pools.budget(
            self.memory,
            self.max_prefill_tokens - beside,
            None if self.chunk is None else self.chunk - beside,
            beside + self.most_promised(ratio),
            lambda: beside + self.promised(ratio),
            beside,
        )
        admitted: list[SglangRequest] = []
        chunked = None
        going_on = self.chunked
        if going_on is not None:
            self.chunked = chunked = self._go_on(going_on, budget)
            if going_on.end > going_on.start:
                admitted.append(going_on)
        # Of the requests that are admitted only the one that goes on has a place among those that run.
        places = self.max_running_requests - len(self.running) + len(admitted)
        queue, future = self.entries, KnownFuture()
        tried, verdict = 0, budget.verdict()
        while tried < queue.waiting and verdict is not Verdict.NO_BUDGET:
            if self.is_full or len(admitted) >= places:
                self.is_full = True
                break
            request = queue.at(tried)
            verdict = self._try(request, admitted, budget, future)
            if admitted and admitted[-1] is request:
                tried += 1
                if request.end < request.length:
                    chunked = request
            if verdict is not Verdict.GO_ON:
                if verdict is Verdict.NO_ROOM:
                    self.is_full = bool(admitted or self.batch)
                break
        queue.take(tried, admitted)
        self.chunked = chunked
        return admitted

    def _go_on(self, request: SglangRequest, budget: Budget) -> SglangRequest | None:
        """Let the prompt in chunks run on, if it does not wait; return it if that is not its last chunk."""
        assert budget.chunk is not None
        most = budget.most_to_go_on()
        if not most:
            return request
        shorter = self._leaving_room(request, budget.chunk)
        if shorter is not None:
            most = min(most, shorter)
        left = request.length - request.start
        tokens = min(left, most)
        request.end = request.start + tokens
        budget.charge(tokens, min(request.max_new, CLIP) if left <= most else 0)
        return request if left > most else None

    def _leaving_room(self, request: SglangRequest, chunk: int) -> int | None:
        """Return the tokens that shorter prompts leave of a chunk; None for all of them."""
        page = self.memory.block_size
        if self.order.policy != "shortest-prefill-first" or chunk < 2 * page:
            return None
        held = 0
        for place in range(self.queue.waiting):
            tokens = uncached(self.entries.at(place))
            pages = -(-tokens // page) * page
            if tokens >= request.length - request.start or held + pages > chunk - page:
                break
            held += pages
        return (chunk - held) // page * page if held else None

    def _try(
        self, request: SglangRequest, admitted: list[SglangRequest], budget: Budget, future: KnownFuture
    ) -> Verdict:
        """Admit a request if there is room for it and budget; say whether the pass goes on."""
        tree = self.tree
        found = 0 if tree is None else tree.match_prefix(request, request.length)
        request.start = request.matched = found
        if self.most_prompts is not None and len(admitted) >= self.most_prompts:
            return Verdict.NO_BUDGET
        if tree is None and self.ignores_stops:
            return self._try_known(request, admitted, budget, future)
        if tree is not None:
            tree.protect(request)  # or what is found would count as free
        verdict = self._fit(request, admitted, budget)
        if verdict is None:
            admitted.append(request)
            return budget.verdict()
        if tree is not None:
            tree.unprotect(request)
        return verdict

    def _fit(self, request: SglangRequest, admitted: list[SglangRequest], budget: Budget) -> Verdict | None:
        """Charge a request if it fits, and say up to where it runs; return why it does not."""
        found = request.start
        length, max_new = request.length, request.max_new
        left = length - found
        to_come = min(max_new + request.prompt - length, CLIP)
        if to_come < 0:
            to_come = 0
        if not budget.has_room(left, to_come):
            return Verdict.NO_ROOM
        if budget.chunk is None and admitted and budget.whole_pages(left) >= budget.prompts:
            return Verdict.NO_BUDGET
        tokens = budget.cut(found, left, to_come)
        if tokens < left:
            if tokens <= 0 or (self.chunked is not None and self.spares_shorter):
                return Verdict.NO_BUDGET
            budget.charge(tokens, 0)
        else:
            budget.charge(tokens, max_new if max_new < CLIP else CLIP)
        request.end = found + tokens
        return None

    def _try_known(
        self, request: SglangRequest, admitted: list[SglangRequest], budget: Budget, future: KnownFuture
    ) -> Verdict:
        """As `_try`, where all requests are known to generate what they ask for and no prefix is cached."""
        left = request.length - request.start
        known = request.length - request.prompt
        if not budget.has_room_for_known(left, min(max(request.max_new - known, 0), CLIP)):
            return Verdict.NO_ROOM
        if budget.looks_ahead:
            others = [self._stay(each) for each in (*self.batch, *admitted)]
            needed = budget.whole_pages(left) + self.memory.block_size
            if not future.has_room(self._stay(request), others, budget.current_left - needed):
                return Verdict.NO_ROOM
        tokens, to_come = left, min(request.max_new, CLIP)
        if budget.chunk is not None and left > budget.chunk:
            tokens, to_come = budget.chunk, 0
            if tokens <= 0:
                return Verdict.NO_BUDGET
        request.end = request.start + tokens
        admitted.append(request)
        budget.charge(tokens, to_come)
        return budget.verdict()

    def _stay(self, request: SglangRequest) -> Stay:
        known = self.generated(request)
        return request.max_new - known, request.prompt + known

    # What runs

    def _run_prompts(self, prompts: list[SglangRequest], batch: Batch) -> None:
        """Take memory for prompts and let them run, the running batch beside them where it may."""
        memory, page = self.memory, self.memory.block_size
        chunked = self.chunked
        chunks: list[tuple[EngineRequest, int]] = []
        tokens = context = pairs = 0
        only = True
        for request in prompts:
            start, end = request.start, request.end
            computed = end - start
            chunks.append((request, computed))
            tokens += computed
            context += end
            pairs += computed * start + computed * (computed + 1) // 2
            if request.max_new:
                only = False
        ahead = len(prompts) * page if page > 1 else 0  # more than is taken
        self.make_blank(-(-(tokens + ahead) // page))
        self.pools.before_prompts(prompts)
        fresh: list[SglangRequest] = []
        for request in prompts:
            end = request.end
            if request.holds_place:
                self.events.interval_ended(request)
                self.context += end - request.tokens
                memory.extend(request, end - request.tokens)
            else:
                fresh.append(request)
                self._enter(request)
                self.context += end
        batch.query_key_pairs, batch.context_tokens = pairs, context
        batch.prompts, batch.chunks, batch.decodes = tuple(fresh), tuple(chunks), False
        self._joining_only = only
        joining = prompts
        if self.mixes and self.batch:
            joining = prompts + self._decode_beside(batch)
            self._joining_only = only and not batch.decoding
        batch.tokens = batch.batched_tokens = self._joining_stale = tokens + batch.decoding
        whole = prompts if chunked is None else [request for request in prompts if request is not chunked]
        for request in whole:
            self.start_decoding(request)
            request.limit = request.max_new + request.prompt - request.base
        if chunked is not None or len(fresh) < len(prompts):
            batch.incomplete = tuple(request for request in fresh if request is chunked)
            batch.completed = tuple(request for request in whole if request not in fresh)
            joining = [request for request in joining if request is not chunked]
        self.joining = joining
        self._in_flight = whole
        if not self.overlaps:
            self._lags = frozenset()
        else:
            self._lags = None if batch.decoding else frozenset(whole)

    def _enter(self, request: SglangRequest) -> None:
        """Give a request that was admitted a place and its memory."""
        request.order = order = self._orders
        self._orders = order + 1
        request.was_retracted, request.holds_place = False, True
        request.cached = request.start
        self._asked += request.prompt + request.max_new
        self.memory.admit(request, request.end)
        self.running[order] = request
        self.running_sequences += 1

    def _decode_beside(self, batch: Batch) -> list[SglangRequest]:
        """Let the running batch decode beside prompts, if it fits; return who does. All join anew then."""
        if self.drop_ending():
            self.is_full = False
        if not self.batch or not self.fits():
            return []
        before = batch.context_tokens
        prompts = sum([request.tokens for request in self.running.values() if not request.decodes])
        self.step(batch)
        batch.decode_context = self.context - prompts
        batch.context_tokens = before + batch.decode_context
        batch.decodes = True
        beside, self.batch = self.batch, []
        self._stale = 0
        return beside

"""The budget of an admission pass, and the requests that it admits.

Source: SGLang 0.5.23, ``srt/managers/schedule_policy.py``, ``PrefillAdder``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

from pagesim.scheduling.sglang.delays import PrefillDelayer
from pagesim.scheduling.sglang.new_token_ratio import RETRACT_STEPS
from pagesim.scheduling.sglang.options import SglangOptions
from pagesim.scheduling.sglang.pool import TokenPool
from pagesim.scheduling.sglang.request import SglangRequest
from pagesim.setup.compiled import mypyc_attr

CLIP_MAX_NEW_TOKENS = 4096
"""Most future tokens that an admission reserves room for, however many a request may generate."""

Future = tuple[int, int]
"""The tokens that a request has yet to generate, and those it holds now and frees when it ends."""


class AddReqResult(Enum):
    """Whether an admission pass continues."""

    CONTINUE = "continue"
    NO_TOKEN = "no token"
    """Memory is short: no further request is tried until one leaves."""
    OTHER = "other"
    """The budget of the iteration is spent."""


@mypyc_attr(allow_interpreted_subclasses=True)
class PrefillAdder:
    """The budget of one admission pass: the remaining tokens of the iteration and of memory.

    A share of the tokens that running requests may still generate counts against memory. It is added up as a
    float in the order of the batch, because every comparison depends on that very sum. Free memory is
    queried anew each time. The pool of sliding-window layers has a budget of its own. Future tokens of
    running requests do not count against it: they hold a window, and free as much as they allocate.

    Args:
        pool: the token pool.
        options: resolved options.
        running: the running batch, in its order.
        to_come: tokens that each running request may still generate.
        new_token_ratio: the share of these for which room is reserved.
        mixed: number of running requests that decode in the same iteration as the prompts.
        delayer: decides whether prompts may run; None if nothing delays them.

    Attributes:
        can_run_list: admitted requests.
        preempt_list: preempted requests, in the order in which they were chosen.
        new_chunked_req: the admitted request whose prompt does not run to its end; None without one.
        rem_input_tokens: prompt tokens that may still be admitted.
        rem_chunk_tokens: prompt tokens that may still be computed; None without chunked prefill.
    """

    def __init__(
        self,
        pool: TokenPool,
        options: SglangOptions,
        running: Sequence[SglangRequest],
        to_come: Sequence[int],
        new_token_ratio: float,
        mixed: int,
        delayer: PrefillDelayer | None = None,
    ) -> None:
        self._pool = pool
        self._page = pool.page_size
        self._options = options
        self._running, self._to_come = list(running), list(to_come)
        self._ratio, self._delayer = new_token_ratio, delayer
        self._futures: list[Future] | None = None
        chunk = options.chunked_prefill_size or -1
        self.rem_input_tokens = options.max_prefill_tokens - mixed
        self.rem_chunk_tokens = chunk - mixed if chunk > 0 else None
        share = 0.0  # not ``sum``, which rounds differently in some Python versions
        for tokens in to_come:
            share += (tokens if tokens < CLIP_MAX_NEW_TOKENS else CLIP_MAX_NEW_TOKENS) * new_token_ratio
        self._total_offset = mixed + share
        self._cur_offset = mixed
        self._swa_offset = 0
        self.can_run_list: list[SglangRequest] = []
        self.preempt_list: list[SglangRequest] = []
        self.new_chunked_req: SglangRequest | None = None

    # The remaining budget

    @property
    def rem_total_tokens(self) -> float:
        """Tokens of memory that are neither held nor reserved."""
        return self._pool.available_tokens - self._total_offset

    @property
    def cur_rem_tokens(self) -> int:
        """Tokens of memory that remain after the current iteration's allocations."""
        return self._pool.available_tokens - self._cur_offset

    @property
    def rem_swa_tokens(self) -> int:
        """Tokens of the window pool that are neither held nor reserved in this pass."""
        return self._pool.available_swa_tokens - self._swa_offset

    def budget_state(self) -> AddReqResult:
        """Return whether the next request may be tried, or which budget is spent."""
        available = self._pool.available_tokens
        if available <= self._total_offset or available <= self._cur_offset:
            return AddReqResult.NO_TOKEN
        if self._pool.is_hybrid_swa and self.rem_swa_tokens <= 0:
            return AddReqResult.NO_TOKEN
        if self.rem_input_tokens <= 0 or (self.rem_chunk_tokens is not None and self.rem_chunk_tokens <= 0):
            return AddReqResult.OTHER
        return AddReqResult.CONTINUE

    # Admission

    def add_chunked_req(self, req: SglangRequest, limit: int | None) -> None:
        """Continue a chunked prefill, or let it wait if no budget is left for it.

        Args:
            req: the request; it becomes ``new_chunked_req`` again if this is not its last chunk.
            limit: tokens that it may compute so that shorter prompts run with it; None for no limit.
        """
        assert self.rem_chunk_tokens is not None
        most = min(self.rem_chunk_tokens, int(self.rem_total_tokens))
        if self._pool.is_hybrid_swa:
            most = min(most, self.rem_swa_tokens - self._page)
        elif most <= 0:
            most = self.rem_chunk_tokens  # whether there is room or not
        if most <= 0:
            self.new_chunked_req = req
            return
        self._may_prefill()  # the delayer must be asked, but the chunk runs in any case
        if limit is not None:
            most = min(most, limit)
        self._admit(req, min(req.length - req.prefix_len, most))

    def add_one_req(self, req: SglangRequest) -> AddReqResult:
        """Admit a waiting request if room and budget allow; return whether the pass continues.

        Args:
            req: the request, whose cached prefix has been looked up.
        """
        options, pool = self._options, self._pool
        most = options.prefill_max_requests
        if most is not None and len(self.can_run_list) >= most:
            return AddReqResult.OTHER
        if options.ignore_eos and pool.tree_cache is None:
            result = self._check_ignore_eos(req)
        else:
            pool.inc_lock_ref(req)  # otherwise its cached prefix would count as free
            result = self._check(req)
            if result is not AddReqResult.CONTINUE:
                pool.dec_lock_ref(req)
        return self.budget_state() if result is AddReqResult.CONTINUE else result

    def _check(self, req: SglangRequest) -> AddReqResult:
        """Admit a request if it fits, with its whole prompt or a first chunk."""
        on_host = self._pool.host_hit_length(req)
        extend = self._extend(req, on_host)
        if isinstance(extend, AddReqResult):
            return extend
        if not self._may_prefill():
            return AddReqResult.OTHER
        if on_host and not self._pool.load_back(req):
            extend = self._extend(req, 0)
            if isinstance(extend, AddReqResult):
                return extend
        self._admit(req, extend)
        return AddReqResult.CONTINUE

    def _extend(self, req: SglangRequest, on_host: int) -> int | AddReqResult:
        """Return the tokens that a request computes, all or a first chunk, or why it is not admitted.

        Args:
            req: the request.
            on_host: tokens after its prefix that would be loaded; they need room but no computation.
        """
        extend, prefix, page = req.length - req.prefix_len, req.prefix_len + on_host, self._page
        to_come = min(max(0, _to_come(req)), CLIP_MAX_NEW_TOKENS)
        if extend + to_come + page >= self.rem_total_tokens:
            return AddReqResult.NO_TOKEN
        extend -= on_host
        chunk = self.rem_chunk_tokens
        if self._pool.is_hybrid_swa:
            chunk = self._swa_chunk(extend, to_come)
            if chunk == 0:
                return AddReqResult.NO_TOKEN
        whole_pages = -(-extend // page) * page
        if self.rem_chunk_tokens is None and self.can_run_list and whole_pages >= self.rem_input_tokens:
            return AddReqResult.OTHER
        if chunk is not None and whole_pages > chunk:
            if self.new_chunked_req is not None and self._options.schedule_policy == "shortest-prefill-first":
                return AddReqResult.OTHER
            extend = (prefix + chunk // page * page) // page * page - prefix
            if extend <= 0:
                return AddReqResult.OTHER
        return extend

    def _may_prefill(self) -> bool:
        """Return whether prompts for which there is room may run, asking the delayer if there is one."""
        return self._delayer is None or self._delayer.allows(len(self._running))

    def _check_ignore_eos(self, req: SglangRequest) -> AddReqResult:
        """Admit a request with ``ignore_eos`` and no prefix cache if all requests fit up to their ends."""
        extend, to_come = req.length - req.prefix_len, max(0, _to_come(req))
        page = self._page
        needed = -(-extend // page) * page + page
        if needed > min(self.cur_rem_tokens, self.rem_total_tokens):
            return AddReqResult.NO_TOKEN
        if self._pool.is_hybrid_swa:
            if self._swa_needed(extend, min(to_come, CLIP_MAX_NEW_TOKENS)) > self.rem_swa_tokens:
                return AddReqResult.NO_TOKEN
        elif not self._all_fit_up_to_their_ends(req, self.cur_rem_tokens - needed):
            return AddReqResult.NO_TOKEN
        if not self._may_prefill():
            return AddReqResult.OTHER
        if self.rem_chunk_tokens is not None:
            extend = min(extend, self.rem_chunk_tokens)
            if extend <= 0:
                return AddReqResult.OTHER
        self._admit(req, extend)
        return AddReqResult.CONTINUE

    def _all_fit_up_to_their_ends(self, req: SglangRequest, left: int) -> bool:
        """Return whether the candidate, running and admitted requests fit while they end one by one.

        The list of them is built for the first candidate. Later candidates are inserted where the real engine
        does: one that ends after all others goes before the last one.

        Args:
            req: the candidate; it stays in the list.
            left: tokens that are free once the candidate has its immediate allocation.
        """
        candidate = (_to_come(req), req.length)
        futures = self._futures
        if futures is None:
            running = [
                (left, each.prompt + each.max_new_tokens - left)
                for each, left in zip(self._running, self._to_come, strict=True)
            ]
            admitted = [(_to_come(each), each.length) for each in self.can_run_list]
            alive = [future for future in (candidate, *running, *admitted) if future[0] > 0]
            futures = self._futures = sorted(alive, key=lambda future: future[0])
        elif candidate[0] > 0:
            later = (place for place, future in enumerate(futures) if candidate[0] <= future[0])
            futures.insert(next(later, max(0, len(futures) - 1)), candidate)
        freed = 0
        for place, (to_come, held) in enumerate(futures):
            count = len(futures) - place
            if left + freed - to_come * count <= count:
                return False
            freed += held
        return True

    def _admit(self, req: SglangRequest, extend: int) -> None:
        """Admit a request that computes ``extend`` tokens, and charge the budgets for it."""
        req.extend_end = req.prefix_len + extend
        to_come = min(req.max_new_tokens, CLIP_MAX_NEW_TOKENS)
        if req.extend_end < req.length:
            self.new_chunked_req, to_come = req, 0
        self.can_run_list.append(req)
        page = self._page
        whole_pages = -(-extend // page) * page
        if self._pool.is_hybrid_swa:
            self._swa_offset += self._swa_needed(whole_pages, to_come)
        self._total_offset += whole_pages + page + to_come
        self._cur_offset += whole_pages + page
        self.rem_input_tokens -= whole_pages
        if self.rem_chunk_tokens is not None:
            self.rem_chunk_tokens -= whole_pages

    # Preemption

    def preempt_to_schedule(self, req: SglangRequest, release: Callable[[SglangRequest], None]) -> bool:
        """Preempt running requests for a more important one if that frees enough; return whether it did.

        The least important requests go first, and among these the newest. The request's need is that of its
        last attempt; if it was never tried, its prompt does not count.

        Args:
            req: a waiting request, not yet looked up in this pass.
            release: frees a request's slot and memory.
        """
        threshold = self._options.priority_scheduling_preemption_threshold
        needed = req.fill_len - req.prefix_len + min(req.max_new_tokens, CLIP_MAX_NEW_TOKENS)
        missing = needed - self.rem_total_tokens
        victims: dict[SglangRequest, float] = {}
        shares = [min(tokens, CLIP_MAX_NEW_TOKENS) * self._ratio for tokens in self._to_come]
        running = sorted(
            zip(self._running, shares, strict=True), key=lambda each: (each[0].importance, -each[0].entry)
        )
        for victim, share in running:
            if req.importance - victim.importance <= threshold:
                break
            victims[victim] = share
            missing -= share
            if missing <= 0:
                break
        if not victims or missing > 0:
            return False
        left = len(self._running)
        for victim in self._running:
            if victim in victims:
                left -= 1
                self._total_offset -= victims[victim]
                release(victim)
                self._pool.evict(-(-left * RETRACT_STEPS // self._page))
        pairs = zip(self._running, self._to_come, strict=True)
        stay = [(each, tokens) for each, tokens in pairs if each not in victims]
        self._running, self._to_come = [each for each, _ in stay], [tokens for _, tokens in stay]
        self.preempt_list.extend(victims)
        return True

    # The window pool

    def _swa_needed(self, tokens: int, to_come: int) -> int:
        """Return the maximum number of tokens that a request allocates in the window pool."""
        window = self._pool.window
        at_once = tokens if self.rem_chunk_tokens is None else min(tokens, self.rem_chunk_tokens)
        return max(at_once - window, 0) + min(tokens + to_come, window) + self._page

    def _swa_chunk(self, tokens: int, to_come: int) -> int | None:
        """Return how many tokens of a prompt the window pool allows at once: 0 for none, None for all."""
        page = self._page
        needed = self._swa_needed(-(-tokens // page) * page, to_come)
        if needed < self.rem_swa_tokens:
            return self.rem_chunk_tokens
        if self.rem_chunk_tokens is None or needed < self._pool.swa_capacity:
            return 0
        # It would never fit as a whole, so as much of it runs as fits now.
        fits = self.rem_swa_tokens - self._swa_needed(0, to_come)
        return min(self.rem_chunk_tokens, max(0, fits // page * page))


def _to_come(req: SglangRequest) -> int:
    """Return the tokens that a request which is not decoding may still generate."""
    return req.max_new_tokens + req.prompt - req.length

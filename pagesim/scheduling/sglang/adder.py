"""What a pass of admission may give away, and which requests it goes to.

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
"""Tokens to come for which an admission leaves room at most, however many a request may generate."""

Future = tuple[int, int]
"""Tokens that a request is going to generate, and tokens that it has now and gives back in the end."""


class AddReqResult(Enum):
    """Whether a pass goes on."""

    CONTINUE = "continue"
    NO_TOKEN = "no token"
    """Memory is short: no request is tried until one leaves."""
    OTHER = "other"
    """The budget of the iteration is spent."""


@mypyc_attr(allow_interpreted_subclasses=True)
class PrefillAdder:
    """The budget of one pass of admission: tokens that are left of an iteration's and of memory's.

    What running requests are going to generate counts against memory, but only a share of it, a float that is
    summed up in their order, because every comparison is made with that sum. What is free in memory is asked
    anew each time. A pool of layers with a window has a budget of its own; what running requests are going to
    take of that does not count: they hold a window, and give back as much as they take.

    Args:
        pool: the token pool.
        options: resolved.
        running: the running batch, in its order.
        to_come: tokens that each of those may still generate.
        new_token_ratio: the share of them for which room is left.
        mixed: running requests that decode beside the prompts.
        delayer: asked whether prompts may run; None where nothing holds them back.

    Attributes:
        can_run_list: the requests that are admitted.
        preempt_list: running requests that made way, in the order in which they were chosen.
        new_chunked_req: the one of them of which only a first chunk runs.
        rem_input_tokens: tokens of prompts that may still be admitted.
        rem_chunk_tokens: tokens that prompts may still compute; None where they are not cut into chunks.
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
        share = 0.0  # not by ``sum``, which some Pythons let round otherwise
        for tokens in to_come:
            share += (tokens if tokens < CLIP_MAX_NEW_TOKENS else CLIP_MAX_NEW_TOKENS) * new_token_ratio
        self._total_offset = mixed + share
        self._cur_offset = mixed
        self._swa_offset = 0
        self.can_run_list: list[SglangRequest] = []
        self.preempt_list: list[SglangRequest] = []
        self.new_chunked_req: SglangRequest | None = None

    # What is left

    @property
    def rem_total_tokens(self) -> float:
        """Tokens of memory that are neither held nor promised."""
        return self._pool.available_tokens - self._total_offset

    @property
    def cur_rem_tokens(self) -> int:
        """Tokens of memory that the iteration at hand does not take."""
        return self._pool.available_tokens - self._cur_offset

    @property
    def rem_swa_tokens(self) -> int:
        """Tokens of the window pool that are neither held nor taken in this pass."""
        return self._pool.available_swa_tokens - self._swa_offset

    def budget_state(self) -> AddReqResult:
        """Say whether the next request may be tried."""
        available = self._pool.available_tokens
        if available <= self._total_offset or available <= self._cur_offset:
            return AddReqResult.NO_TOKEN
        if self._pool.is_hybrid_swa and self.rem_swa_tokens <= 0:
            return AddReqResult.NO_TOKEN
        if self.rem_input_tokens <= 0 or (self.rem_chunk_tokens is not None and self.rem_chunk_tokens <= 0):
            return AddReqResult.OTHER
        return AddReqResult.CONTINUE

    # Which requests are admitted

    def add_chunked_req(self, req: SglangRequest, limit: int | None) -> None:
        """Let the prompt in chunks run on, of the last chunk on all of it, if it does not wait.

        Args:
            req: the request; it is ``new_chunked_req`` again where that is not its last chunk.
            limit: tokens that it may compute, where shorter prompts shall run beside it.
        """
        assert self.rem_chunk_tokens is not None
        most = min(self.rem_chunk_tokens, int(self.rem_total_tokens))
        if self._pool.is_hybrid_swa:
            most = min(most, self.rem_swa_tokens - self._page)
        elif most <= 0:
            most = self.rem_chunk_tokens  # room or no room
        if most <= 0:
            self.new_chunked_req = req
            return
        self._may_prefill()  # it runs in any case
        if limit is not None:
            most = min(most, limit)
        self._admit(req, min(req.length - req.prefix_len, most))

    def add_one_req(self, req: SglangRequest) -> AddReqResult:
        """Admit a waiting request if there is room for it and budget; say whether the pass goes on.

        Args:
            req: the request, whose cached prefix was looked up.
        """
        options, pool = self._options, self._pool
        most = options.prefill_max_requests
        if most is not None and len(self.can_run_list) >= most:
            return AddReqResult.OTHER
        if options.ignore_eos and pool.tree_cache is None:
            result = self._check_ignore_eos(req)
        else:
            pool.inc_lock_ref(req)  # or its cached prefix would count as free
            result = self._check(req)
            if result is not AddReqResult.CONTINUE:
                pool.dec_lock_ref(req)
        return self.budget_state() if result is AddReqResult.CONTINUE else result

    def _check(self, req: SglangRequest) -> AddReqResult:
        """Admit a request, whole or with a first chunk, where it fits."""
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
        """Return the tokens that a request computes, all or a first chunk; or why it is not admitted.

        Args:
            req: the request.
            on_host: tokens behind its prefix that would be loaded; they take room, and nothing computes them.
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
        """Say whether nothing holds back the prompts for which there is room."""
        return self._delayer is None or self._delayer.allows(len(self._running))

    def _check_ignore_eos(self, req: SglangRequest) -> AddReqResult:
        """Admit a request where all generate what they ask for and no prefix is cached, if all find room."""
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
        """Say whether a candidate, running and admitted requests find room, one ending after another.

        The list of them is made with the first candidate. Later ones are inserted where the real engine does:
        one that ends after all others stands before the last one.

        Args:
            req: the candidate; stays in the list.
            left: tokens that are free now, what the candidate takes at once off.
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
        """Admit a request of which so many tokens run, and charge them."""
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
        """Let running requests make way for a more important one, if enough can; say whether they did.

        The least important ones go first, of these the newest. What the request needs is as of when it was
        last tried: nothing of its prompt if it never was.

        Args:
            req: a waiting request, not looked up yet in this pass.
            release: takes a request's place and memory.
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
        """Return the tokens of the window pool that a request takes at most."""
        window = self._pool.window
        at_once = tokens if self.rem_chunk_tokens is None else min(tokens, self.rem_chunk_tokens)
        return max(at_once - window, 0) + min(tokens + to_come, window) + self._page

    def _swa_chunk(self, tokens: int, to_come: int) -> int | None:
        """Return how much of a prompt the window pool lets run at once: 0 for none, None for all of it."""
        page = self._page
        needed = self._swa_needed(-(-tokens // page) * page, to_come)
        if needed < self.rem_swa_tokens:
            return self.rem_chunk_tokens
        if self.rem_chunk_tokens is None or needed < self._pool.swa_capacity:
            return 0
        # It would never fit: as much of it runs as fits now.
        fits = self.rem_swa_tokens - self._swa_needed(0, to_come)
        return min(self.rem_chunk_tokens, max(0, fits // page * page))


def _to_come(req: SglangRequest) -> int:
    """Return the tokens that a request may still generate that does not decode."""
    return req.max_new_tokens + req.prompt - req.length

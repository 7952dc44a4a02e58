"""The pool of token slots as SGLang's loop sees it, with or without a radix tree.

Source: SGLang 0.5.23, ``srt/managers/schedule_batch.py``, ``srt/mem_cache/common.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

from pagesim.kvcache import BlockManager
from pagesim.kvcache.radix import HostRadixManager, RadixManager, StateRadixManager, WindowedRadixManager
from pagesim.scheduling.sglang.options import SglangOptions
from pagesim.scheduling.sglang.request import SglangRequest
from pagesim.scheduling.sglang.states import StateTracker
from pagesim.setup.compiled import mypyc_attr

SWA_EVICTION_INTERVAL = 128
"""Tokens that must have left a decoding request's window before it frees their window slots."""


@mypyc_attr(allow_interpreted_subclasses=True)
class TokenPool:
    """Allocates slots for requests, caches what they computed and evicts what is cached.

    If sliding-window layers have a pool of their own (``is_hybrid_swa``), a request frees the slots of tokens
    that have left its window.

    Args:
        memory: the block manager, empty.
        options: resolved options.

    Attributes:
        memory: the block manager of the pages.
        page_size: tokens per page.
        tree_cache: the memory with its radix tree; None without prefix caching.
        states: decides which recurrent states enter the tree; None if it holds none.
        is_hybrid_swa: whether there is a separate window pool.
        window: tokens of its window; 0 without one.
        swa_capacity: tokens that the window pool holds; 0 without one.
    """

    def __init__(self, memory: BlockManager, options: SglangOptions) -> None:
        self.memory = memory
        self.page_size = memory.block_size
        self.tree_cache = memory if options.caches and isinstance(memory, RadixManager) else None
        self._chunk = max(0, options.chunked_prefill_size or 0)
        self._swa = memory if isinstance(memory, WindowedRadixManager) else None
        self.is_hybrid_swa = self._swa is not None
        self.states: StateTracker | None = None
        if options.caches and isinstance(memory, StateRadixManager):
            self.states = StateTracker(memory, options)
        self._host = memory if isinstance(memory, HostRadixManager) else None
        self._evicted = self._evicted_states = 0
        self.window = self.swa_capacity = 0
        if self._swa is not None:
            self.window = self._swa.windows.window
            self.swa_capacity = self._swa.windows.num_blocks * self.page_size

    @property
    def available_tokens(self) -> int:
        """Tokens that no request holds, including those that can be evicted."""
        return self.memory.free_blocks * self.page_size if self._host is None else self._host.available_tokens

    @property
    def usage(self) -> float:
        """The fraction of the token pool that requests hold, or of the state or window pool if larger."""
        capacity = self.memory.num_blocks * self.page_size
        usage = (capacity - self.available_tokens) / capacity
        if isinstance(self.memory, StateRadixManager):
            slots = self.memory.pool.slots
            return max(usage, (slots - self.memory.available_states) / slots)
        if self._swa is None:
            return usage
        return max(usage, (self.swa_capacity - self.available_swa_tokens) / self.swa_capacity)

    @property
    def available_swa_tokens(self) -> int:
        """Tokens of the window pool that no request holds, including those that can be evicted."""
        return 0 if self._swa is None else self._swa.free_window_blocks * self.page_size

    def begin_turn(self) -> None:
        """Start counting this turn's evictions."""
        if self.tree_cache is not None:
            self._evicted = self.tree_cache.evicted
        if isinstance(self.tree_cache, StateRadixManager):
            self._evicted_states = self.tree_cache.evicted_states

    @property
    def evicted_tokens(self) -> int:
        """Tokens that were evicted in this turn."""
        return 0 if self.tree_cache is None else self.tree_cache.evicted - self._evicted

    @property
    def evicted_states(self) -> int:
        """Recurrent states that were evicted in this turn."""
        memory = self.tree_cache
        return memory.evicted_states - self._evicted_states if isinstance(memory, StateRadixManager) else 0

    def evict(self, pages: int) -> int:
        """Evict until ``pages`` pages are available, if possible; return how many are available."""
        memory = self.memory
        return memory.make_available(pages) if isinstance(memory, RadixManager) else memory.free_blocks

    def check_decode_mem(self, reqs: Sequence[SglangRequest]) -> bool:
        """Evict for the next step of the running batch, these requests; return whether its pages fit."""
        needed = self.memory.blocks_needed(1)
        return self.evict(needed) >= needed

    def steps_alike(
        self, steps: int, decoding: int, batch: Sequence[SglangRequest], *, overlaps: bool
    ) -> int:
        """Return how many decode steps find their pages while nothing is evicted or freed.

        Args:
            steps: maximum number of steps.
            decoding: number of decoding requests.
            batch: the running batch.
            overlaps: whether a token of each request is in flight.
        """
        memory = self.memory
        available = memory.free_blocks - memory.cached_blocks
        if self._swa is not None:
            available = min(available, self._swa.available_window_blocks)
            ahead = self.window + SWA_EVICTION_INTERVAL + overlaps - memory.steps
            steps = min(
                steps, min([request.block_state.gone - request.length_offset + ahead for request in batch])
            )
        if steps <= 0 or available < decoding:
            return 0
        # Before each step, at least as many pages must be available as requests decode.
        return 1 + memory.steps_that_fit(steps - 1, memory.free_blocks - available + decoding)

    # The radix tree

    def match_prefix(self, req: SglangRequest) -> None:
        """Look up all tokens of a request but the last."""
        tree = self.tree_cache
        req.prefix_len = req.matched_len = 0 if tree is None else tree.match_prefix(req, req.length)
        if self.states is not None:
            self.states.found(req)

    def host_hit_length(self, req: SglangRequest) -> int:
        """Return how many tokens on the host follow the prefix last matched for a request."""
        return 0 if self._host is None else self._host.host_tokens(req)

    def load_back(self, req: SglangRequest) -> bool:
        """Load these tokens for a request whose prefix is locked; return whether it was worth it and fit."""
        req.loaded = 0 if self._host is None else self._host.load_back(req)
        req.prefix_len += req.loaded
        return req.loaded > 0

    def inc_lock_ref(self, req: SglangRequest) -> None:
        """Lock the prefix that was last matched for a request."""
        if self.tree_cache is not None:
            self.tree_cache.protect(req)

    def dec_lock_ref(self, req: SglangRequest) -> None:
        """Unlock that prefix because the request is not admitted."""
        if self.tree_cache is not None:
            self.tree_cache.unprotect(req)

    def cache_unfinished_req(self, req: SglangRequest) -> None:
        """Insert into the tree what a request's last prefill computed."""
        if self.tree_cache is not None:
            tokens = req.extend_end if self.states is None else self.states.after_prefill(req)
            if tokens:
                self.tree_cache.cache_tokens(req, tokens)

    def caches_apart(self, reqs: Sequence[SglangRequest]) -> bool:
        """Return whether caching the prompts of some requests leaves all page and state counts unchanged."""
        if self.is_hybrid_swa or self.states is not None:
            return False
        return self.tree_cache is None or self.tree_cache.caches_apart(reqs)

    def cache_finished_req(self, req: SglangRequest) -> None:
        """Insert a finished request's cacheable tokens into the tree, and release it."""
        if self.tree_cache is not None:
            tokens = self.cached_tokens(req)
            if self.states is not None:
                tokens = self.states.at_end(req, tokens)
            if tokens:
                self.tree_cache.cache_tokens(req, tokens, over=True)
        self.release_req(req)

    def cached_tokens(self, req: SglangRequest) -> int:
        """Return how many tokens of a finished request may be cached."""
        tokens = self.memory.length(req)
        return tokens if req.is_refused else min(tokens, req.final_length)

    def release_req(self, req: SglangRequest) -> None:
        """Release a request without caching any more of it."""
        if isinstance(self.memory, RadixManager):
            self.memory.drop(req)
        else:
            self.memory.release(req)
        req.block_state = None

    # The window pool

    def evict_swa_before_chunk(self, req: SglangRequest, *, overlaps: bool) -> None:
        """Free what left the window of a prompt whose next chunk is about to run."""
        if self._swa is None or self.tree_cache is not None:  # the tree takes over the slots, window included
            return
        req.block_state.parts += 1
        if not overlaps:
            self._swa.slide(req, req.prefix_len)
        elif req.block_state.parts > 2:
            self._swa.slide(req, req.prefix_len - self._chunk)

    def evict_swa(self, req: SglangRequest, tokens: int) -> None:
        """Free what left the window of a decoding request that has ``tokens`` known tokens."""
        if self._swa is None:
            return
        enough = tokens - 1 - self.window - SWA_EVICTION_INTERVAL >= req.block_state.gone
        if enough and self._swa.length(req) > req.extend_end:
            self._swa.slide(req, tokens - 1)

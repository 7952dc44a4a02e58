"""Which states of layers that keep one are cached, and with how many tokens.

Source: SGLang 0.5.23, ``ScheduleBatch.prepare_for_extend``, ``srt/managers/scheduler_components/
batch_result_processor.py``, ``srt/mem_cache/unified_cache/components/mamba.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import lcm

from pagesim.kvcache.radix import StateRadixManager
from pagesim.scheduling.sglang.options import SglangOptions
from pagesim.scheduling.sglang.request import SglangRequest
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class StateTracker:
    """Says up to which token a request is inserted into the tree: there must be a state behind that one.

    With slots to track states in (``extra_buffer``) a prefill leaves one behind its last whole chunk, and
    decodes leave one at every multiple of some tokens. Without (``no_buffer``) the state that the request has
    is copied.

    Args:
        memory: with a radix tree and a pool of states.
        options: resolved.
    """

    def __init__(self, memory: StateRadixManager, options: SglangOptions) -> None:
        page, chunk = memory.block_size, memory.pool.chunk
        self._memory = memory
        self._copies = not options.tracking_slots(page)
        self._model_chunk = chunk
        self._chunk = max(chunk, page)
        self._grid = lcm(self._chunk, page)
        self._interval = lcm(self._grid, options.mamba_track_interval)

    def found(self, req: SglangRequest) -> None:
        """Take a copy of the state with which the prefix ends that was looked up; note where prompts part."""
        self._memory.copy_state(req)
        reached = self._memory.tree.reached
        branch = reached - reached % self._grid
        req.branch = branch if branch > req.prefix_len else 0

    def reject(self) -> None:
        """Give the copy back that was taken for a request which is not admitted."""
        self._memory.drop_copy()

    def reserve(self, prompts: Iterable[SglangRequest]) -> None:
        """Take the slots of requests whose prompts run, and note where these leave a state behind."""
        for req in prompts:
            self._memory.reserve_states(req)
            req.untracked = ()
            req.tracked = 0 if self._copies else self._tracked_by_prefill(req)

    def skip_step(self, decoding: Iterable[SglangRequest]) -> None:
        """Note that a step which decodes beside prompts leaves no state behind."""
        if self._copies:
            return
        for req in decoding:
            tokens = self._memory.length(req)
            if not tokens % self._interval:
                req.untracked = (*req.untracked, tokens)

    def after_prefill(self, req: SglangRequest) -> int:
        """Return how many tokens are inserted of a request whose prompt, or a chunk of it, has run."""
        if self._copies:
            return req.extend_end
        tracked, req.tracked = req.tracked, 0
        return tracked

    def at_end(self, req: SglangRequest, tokens: int) -> int:
        """Return how many tokens are inserted of a request that is over and has KV of so many."""
        if self._copies:
            return tokens
        # The last token of all is computed where overlap decides a step too many; its state is not tracked.
        known = min(tokens, req.final_length - 1)
        decoded = known - known % self._interval
        while decoded in req.untracked:
            decoded -= self._interval
        return decoded if decoded > req.extend_end else min(req.tracked, tokens)

    def _tracked_by_prefill(self, req: SglangRequest) -> int:
        """Return the tokens behind which a prefill leaves a state; 0 for none.

        Where more of its tokens are in the tree than were found, that is where other prompts went on
        differently: the next one that does so finds a state there.
        """
        start, end, branch = req.prefix_len, req.extend_end, req.branch
        computed = end - start
        if computed < self._grid:
            return 0
        tracked = start + computed - computed % self._grid
        is_last = start + computed - computed % self._model_chunk == tracked
        before = end if is_last else tracked + 1
        if start < branch < before and not (branch - start) % self._chunk:
            return branch
        return tracked

"""Which recurrent states are cached, and after how many tokens.

Source: SGLang 0.5.23, ``ScheduleBatch.prepare_for_extend``, ``srt/managers/scheduler_components/
batch_result_processor.py``, ``srt/mem_cache/unified_cache/components/mamba.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import lcm

from pagesim.kvcache.radix import StateRadixManager
from pagesim.scheduling.sglang.options import SglangOptions
from pagesim.scheduling.sglang.request import SglangRequest


class StateTracker:
    """Decides up to which token a request is inserted into the tree: there must be a state after it.

    With slots for tracking states (``extra_buffer``), a prefill leaves a state after its last whole chunk,
    and decodes leave one at fixed intervals of tokens. A step that verifies drafts leaves one if its accepted
    tokens pass the end of an interval. Without slots (``no_buffer``), the current state is copied.

    Args:
        memory: the memory, with a radix tree and a pool of states.
        options: resolved options.
    """

    def __init__(self, memory: StateRadixManager, options: SglangOptions) -> None:
        page, chunk = memory.block_size, memory.pool.chunk
        self._memory = memory
        slots = options.tracking_slots(page)
        self._copies = not slots
        self._keeps_two = slots > 1  # the state tracked last, and the one before
        self._verifies = options.speculative_algorithm is not None
        self._model_chunk = chunk
        self._chunk = max(chunk, page)
        self._grid = lcm(self._chunk, page)
        self._interval = lcm(self._grid, options.mamba_track_interval)

    def found(self, req: SglangRequest) -> None:
        """Copy the state at the end of the matched prefix, and note where the prompt branches off."""
        self._memory.copy_state(req)
        reached = self._memory.tree.reached
        branch = reached - reached % self._grid
        req.branch = branch if branch > req.prefix_len else 0

    def reject(self) -> None:
        """Drop the state copied for a request that is not admitted."""
        self._memory.drop_copy()

    def reserve(self, prompts: Iterable[SglangRequest]) -> None:
        """Allocate state slots for requests whose prompts run, and note where these leave a state."""
        for req in prompts:
            self._memory.reserve_states(req)
            req.untracked = ()
            req.tracked = 0 if self._copies else self._tracked_by_prefill(req)

    def skip_step(self, req: SglangRequest, tokens: int) -> None:
        """Note that a decode that runs together with prompts leaves no state; then ``tokens`` have KV."""
        if not (self._copies or tokens % self._interval):
            req.untracked = (*req.untracked, tokens)

    def after_prefill(self, req: SglangRequest) -> int:
        """Return how many tokens of a request to insert once its prompt, or a chunk of it, has run."""
        if self._copies:
            return req.extend_end
        tracked, req.tracked = req.tracked, 0
        return tracked

    def at_end(self, req: SglangRequest, tokens: int) -> int:
        """Return how many tokens of a finished request to insert, if ``tokens`` of them have KV and count.

        With drafts, the last step may accept tokens behind the last one; a state after those is of no use.
        """
        if self._copies:
            return tokens if not self._verifies or req.committed <= req.final_length else 0
        # If overlap schedules one step too many, the very last token is computed; its state is not tracked.
        known = req.length - 1 if self._verifies else min(tokens, req.final_length - 1)
        decoded = self._last_tracked(req, known)
        if decoded > tokens:
            decoded = self._last_tracked(req, tokens) if self._keeps_two else 0
        return decoded if decoded > req.extend_end else min(req.tracked, tokens)

    def _last_tracked(self, req: SglangRequest, tokens: int) -> int:
        """Return after how many tokens, at most ``tokens``, decodes last left a state, if they left any."""
        last = tokens - tokens % self._interval
        while last in req.untracked:
            last -= self._interval
        return last

    def _tracked_by_prefill(self, req: SglangRequest) -> int:
        """Return the number of tokens after which a prefill leaves a state; 0 for none.

        If the tree holds more of its tokens than were matched, this is where other prompts branch off, so
        that the next one to do so finds a state there.
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

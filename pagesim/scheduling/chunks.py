"""Chunks of a prompt of a model with recurrent states: they end where a state can be found again."""

from __future__ import annotations

from pagesim.kvcache import StateChunks, can_keep, last_cacheable
from pagesim.scheduling.request import EngineRequest


def cut(request: EngineRequest, start: int, tokens: int, states: StateChunks, most: int) -> int:
    """Return how many of so many tokens a chunk of a prompt has, at least 0.

    A chunk ends where a block does, unless it is the last one; it stops where a state is found again last,
    and where other requests part from this one, unless its kernels leave the state there behind.

    Source: vLLM 0.33.0, ``Scheduler._mamba_block_aligned_split``.

    Args:
        request: whose.
        start: tokens that were computed or found before.
        tokens: of the chunk, as far as the budget goes.
        states: blocks and checkpoints of the model's recurrent states.
        most: tokens of the largest chunk.
    """
    prompt_end = max(request.prompt, request.length - 1)
    if start >= prompt_end:
        return tokens
    size, end, junction = states.block_size, start + tokens, request.junction
    ahead, drops_block = states.hash_lookahead, states.drops_block
    last_full = last_cacheable(request.length, size, ahead, drops_block=drops_block)
    to_boundary = (start // size + 1) * size if start % size else 0
    if states.checkpoint is not None and end >= prompt_end:
        kept = last_cacheable(prompt_end, states.alignment, ahead, drops_block=drops_block)
        if can_keep(start, end, kept, size, states.checkpoint):
            last_full = to_boundary = 0
    if end < prompt_end:
        aligned = end // size * size
        if aligned > start or size <= most:
            end = aligned
    to_junction = start + (junction - start) // size * size if start < junction < end else 0
    stops = [stop for stop in (to_boundary, last_full, to_junction) if start < stop < end]
    return max(0, min(stops, default=end) - start)

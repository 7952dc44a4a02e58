"""Prompt chunks of a model with recurrent states, which end where a state can be reused."""

from __future__ import annotations

from pagesim.kvcache import StateChunks, can_keep, last_cacheable
from pagesim.scheduling.request import EngineRequest


def cut(request: EngineRequest, start: int, tokens: int, states: StateChunks, most: int) -> int:
    """Return how many of ``tokens`` tokens a chunk of a prompt computes, at least 0.

    A chunk ends at the end of a block, unless it is the last one. It also stops at the last reusable state,
    unless the kernels keep that state within a chunk, and where other requests diverge from this one.

    Source: vLLM 0.33.0, ``Scheduler._mamba_block_aligned_split``.

    Args:
        request: the request whose prompt is chunked.
        start: tokens already computed or cached.
        tokens: length of the chunk that the token budget allows.
        states: blocks and checkpoints of the model's recurrent states.
        most: maximum length of a chunk in tokens.
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

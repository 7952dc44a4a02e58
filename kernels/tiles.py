"""What the attention kernels share: addresses of a tile of vectors, and a step of online softmax over one tile.

A tile is a power of two of tokens of one KV head. Everything is in base 2: scores come multiplied by log₂ e.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = 1.4426950408889634

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def in_vector(dim, chunk, LANES: tl.constexpr):
    """Return where elements ``dim`` of a vector are that is cut into chunks of LANES elements (layouts.Strides)."""
    if chunk == 0:
        return dim
    else:
        return dim // LANES * chunk + dim % LANES


@triton.jit
def dot(a, b, onto):
    """Return ``onto + a @ b`` in float32; float32 operands are not rounded to tf32."""
    if INTERPRETED:  # which multiplies bfloat16 as the integers that it stores it in
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, onto, input_precision="ieee")


@triton.jit
def attend(q, keys, values, scale, visible, highest, total, output, MASKED: tl.constexpr):
    """Take one tile into account.

    Args:
        q: queries ``[M, D]``.
        keys: ``[TILE, D]``, as stored.
        values: ``[TILE, D]``, as stored.
        scale: of the scores, log₂ e included.
        visible: ``[M or 1, TILE]``, looked at if MASKED; every row must see a token of the first tile.
        highest: the highest score so far ``[M]``, minus infinity at first.
        total: the sum so far of ``2^(score - highest)``, ``[M]``.
        output: the sum so far of that times the values ``[M, D]``.
        MASKED: whether there are tokens that are not to be seen.

    Returns:
        The new ``highest``, ``total`` and ``output``.
    """
    scores = dot(q, tl.trans(keys.to(q.dtype)), tl.zeros([q.shape[0], keys.shape[0]], tl.float32)) * scale
    if MASKED:
        scores = tl.where(visible, scores, float("-inf"))
    raised = tl.maximum(highest, tl.max(scores, axis=1))
    weights = tl.exp2(scores - raised[:, None])
    keep = tl.exp2(highest - raised)
    total = total * keep + tl.sum(weights, axis=1)
    output = dot(weights.to(q.dtype), values.to(q.dtype), output * keep[:, None])
    return raised, total, output

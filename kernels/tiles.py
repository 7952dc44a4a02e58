"""What the attention kernels share: tiles of a paged cache, matrix products, and online softmax steps.

A tile is BLOCK_N tokens of one KV head. Scores are in base 2, which means multiplied by log₂ e.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = 1.4426950408889634

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)

LEAST = tl.constexpr(-1e30)
"""Running maximum of a row that has not seen a token yet: finite, so that subtracting it from a masked score
does not give a NaN."""


@triton.jit
def split_bounds(first, end, split, num_splits, min_split, BLOCK_N: tl.constexpr):
    """Return the first token of a split of tokens ``first`` to ``end``, and the one after its last.

    How long a split is follows from the row's own length, so that a grid for the longest context there can
    be cuts short contexts, too. ``first`` is a multiple of BLOCK_N, and so are the bounds between splits.
    """
    own = tl.maximum(min_split, tl.cdiv(end - first, num_splits))
    own = tl.cdiv(own, BLOCK_N) * BLOCK_N
    start = first + split * own
    return start, tl.minimum(start + own, end)


@triton.jit
def load_block_ids(table, token, begin, end, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return the physical block of the tile at ``token``, or of each of its tokens if blocks are smaller.

    Entries of the block table that no token from ``begin`` to ``end`` needs are not read.
    """
    if BLOCK_SIZE % BLOCK_N == 0:
        return tl.load(table + token // BLOCK_SIZE, mask=token < end, other=0)
    else:
        tokens = token + tl.arange(0, BLOCK_N)
        needed = (tokens >= begin) & (tokens < end)
        return tl.load(table + tokens // BLOCK_SIZE, mask=needed, other=0)  # [BLOCK_N]


@triton.jit
def tile_pointers(
    cache,
    ids,
    token,
    dim,
    stride_block,
    STRIDE_TOKEN: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Return pointers ``[BLOCK_N, D]`` to the vectors of the tile at ``token``, a multiple of BLOCK_N.

    What a block stride is multiplied by has 64 bits: caches have more than 2³¹ elements.
    """
    tokens = tl.arange(0, BLOCK_N)
    if BLOCK_SIZE % BLOCK_N == 0:
        slot = tl.cast(token % BLOCK_SIZE, tl.int64)
        base = cache + (ids.to(tl.int64) * stride_block + slot * STRIDE_TOKEN)
        return base + ((tokens * STRIDE_TOKEN)[:, None] + dim[None, :])
    else:
        if BLOCK_N % BLOCK_SIZE != 0:  # otherwise a tile begins where a block does
            tokens += token
        slots = (tokens % BLOCK_SIZE).to(tl.int64)
        base = cache + (ids.to(tl.int64) * stride_block + slots * STRIDE_TOKEN)  # [BLOCK_N]
        return base[:, None] + dim[None, :]


@triton.jit
def load_tile(pointers, is_token, is_dim, MASKED: tl.constexpr, PADDED: tl.constexpr):
    """Return a tile ``[BLOCK_N, D]``; what is masked is zeros, since zero times a NaN is a NaN.

    MASKED says that some tokens are not to be read, PADDED that some dimensions do not exist.
    """
    if MASKED:
        return tl.load(pointers, mask=is_token[:, None] & is_dim[None, :], other=0.0)
    elif PADDED:
        return tl.load(pointers, mask=is_dim[None, :], other=0.0)
    else:
        return tl.load(pointers)


@triton.jit
def rounded(x, DTYPE: tl.constexpr):
    """Return float32 in another type, rounded to the nearest, ties to even."""
    if INTERPRETED:
        if tl.bfloat16 == DTYPE:  # whose rounding the interpreter does not carry into the exponent
            bits = x.to(tl.uint32, bitcast=True)
            bits += 0x7FFF + ((bits >> 16) & 1)
            x = (bits & 0xFFFF0000).to(tl.float32, bitcast=True)
    return x.to(DTYPE)


@triton.jit
def dot(a, b):
    """Return the product of two matrices of one type in float32."""
    if INTERPRETED:  # which multiplies bfloat16 as the integers that it stores it in
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def softmax_step(S, scale, m, l):  # noqa: E741
    """Take the scores of a tile into account, a step of online softmax in base 2.

    Args:
        S: scores not yet scaled ``[BLOCK_M, BLOCK_N]``, minus infinity where a row does not see a token.
        scale: of scores, above 0. Scaled here, they take one instruction less.
        m: the highest score so far ``[BLOCK_M]``, or LEAST.
        l: the sum so far of ``2^(S - m)``, ``[BLOCK_M]``.

    Returns:
        The tile's weights P ``[BLOCK_M, BLOCK_N]``, the factor alpha ``[BLOCK_M]`` that earlier sums are
        scaled down by, and the new m and l.
    """
    m_new = tl.maximum(m, tl.max(S, axis=1) * scale)
    P = tl.exp2(S * scale - m_new[:, None])
    alpha = tl.exp2(m - m_new)
    return P, alpha, m_new, l * alpha + tl.sum(P, axis=1)


@triton.jit
def store_result(
    acc,
    m,
    l,  # noqa: E741
    Out,
    LSE,
    at,
    part,
    dim,
    is_row,
    is_dim,
    DIM: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """Store ``acc / l``: the result, or of a split the partial result and the logarithm of its sum.

    Args:
        acc: weighted sum of values ``[BLOCK_M, D]``.
        m: the highest score ``[BLOCK_M]``.
        l: sum of weights ``[BLOCK_M]``; 0 for a row that sees no token, whose result is zeros.
        Out: the result, or if SPLIT float32 ``[parts, DIM]``.
        LSE: if SPLIT float32 ``[parts]``: log₂ of the sum, minus infinity for no token.
        at: where each row of the result begins ``[BLOCK_M]``.
        part: which partial result each row is, int64 ``[BLOCK_M]``.
        dim: ``[D]``.
        is_row: which rows there are ``[BLOCK_M]``.
        is_dim: which dimensions there are ``[D]``.
        DIM: of a partial result.
        SPLIT: whether this is one of several splits.
    """
    sees = l > 0
    acc = acc * (1.0 / tl.where(sees, l, 1.0))[:, None]
    if SPLIT:
        at = part * DIM
        lse = tl.where(sees, m + tl.log2(tl.where(sees, l, 1.0)), float("-inf"))
        tl.store(LSE + part, lse, mask=is_row)
        is_row = is_row & sees  # other partial results are not read
    where = Out + at[:, None] + dim[None, :]
    tl.store(where, rounded(acc, Out.dtype.element_ty), mask=is_row[:, None] & is_dim[None, :])

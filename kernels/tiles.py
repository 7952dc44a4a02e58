"""What the attention kernels share: where a tile of vectors is, and a step of online softmax over it.

A tile is a power of two of tokens of one KV head. Everything is in base 2: scores come multiplied by log₂ e.
"""

from __future__ import annotations

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)

LEAST = tl.constexpr(-1e30)
"""The highest score so far of a row that may have seen no token: below any score, and finite, so that the
difference to a masked score is no NaN."""


@triton.jit
def split_tokens(length, tokens_per_split, splits, TILE: tl.constexpr):
    """Return the tokens of a split of a sequence of this length (``planner.DecodePlan.split_tokens``)."""
    return tl.maximum(tokens_per_split, tl.cdiv(length, splits * TILE) * TILE)


@triton.jit
def first_seen(length, window, QUERIES: tl.constexpr, WINDOWED: tl.constexpr):
    """Return the first token that the first of the last QUERIES tokens sees (``planner.first_seen``)."""
    if WINDOWED:
        return tl.maximum(length - (QUERIES - 1) - window, 0)
    else:
        return 0


@triton.jit
def strided(index, stride, BY_EIGHT: tl.constexpr, PACKED: tl.constexpr = 1):
    """Return ``index * stride``; BY_EIGHT tells Triton that it is a multiple of 8 numbers.

    Of a stride Triton looks whether it is a multiple of 16 or not (``cache.by_eight``). A stride is that of
    what PACKED numbers are.
    """
    offset = index * stride
    if BY_EIGHT:
        offset = tl.multiple_of(offset, 8 // PACKED)
    return offset


@triton.jit
def in_vector(dim, chunk, LANES: tl.constexpr):
    """Return where elements ``dim`` of a vector are (``layouts.Strides``)."""
    if chunk == 0:
        return dim
    else:
        return dim // LANES * chunk + dim % LANES


@triton.jit
def block_ids(table, token, end, sequence, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, begin=None):
    """Return the block of the tile at ``token``, or of each of its tokens where tiles do not divide blocks.

    A block size of 0 means that the cache is contiguous: the sequence itself is the block. Entries of the
    table that no token from ``begin`` to ``end`` needs are not read.
    """
    if BLOCK_SIZE == 0:
        return sequence
    elif BLOCK_SIZE % TILE == 0:
        return tl.load(table + token // BLOCK_SIZE, mask=token < end, other=0)
    else:
        tokens = token + tl.arange(0, TILE)
        needed = tokens < end
        if begin is not None:
            needed = needed & (tokens >= begin)
        return tl.load(table + tokens // BLOCK_SIZE, mask=needed, other=0)


@triton.jit
def tile_pointers(
    cache, ids, token, dims, stride_block, TOKEN: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr
):
    """Return pointers ``[TILE, D]`` to the vectors of the tile at ``token``, a multiple of TILE.

    Whatever a block stride is multiplied by is 64 bits wide: caches have more than 2³¹ elements.
    """
    tokens = tl.arange(0, TILE)
    if BLOCK_SIZE == 0:  # one id, and tokens count from the sequence's first
        base = cache + (ids.to(tl.int64) * stride_block + token.to(tl.int64) * TOKEN)
        return base + ((tokens * TOKEN)[:, None] + dims[None, :])
    elif BLOCK_SIZE % TILE == 0:
        base = cache + ids.to(tl.int64) * stride_block
        return base + (((token % BLOCK_SIZE + tokens) * TOKEN)[:, None] + dims[None, :])
    else:
        base = cache + ids.to(tl.int64) * stride_block  # [TILE]
        if TILE % BLOCK_SIZE != 0:  # otherwise a tile begins where a block does
            tokens += token
        return base[:, None] + ((tokens % BLOCK_SIZE * TOKEN)[:, None] + dims[None, :])


@triton.jit
def load_tile(
    cache,
    ids,
    token,
    end,
    dims,
    is_dim,
    stride_block,
    TOKEN: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    PADDED: tl.constexpr,
    MASKED: tl.constexpr,
    begin=None,
):
    """Return the vectors ``[TILE, D]`` of the tile at ``token``.

    If MASKED, those before ``begin`` and from ``end`` on are zeros, not what lies there: a weight of zero
    times a NaN is a NaN. Zeros are of the type that is loaded: a load whose zero is converted is not
    pipelined. PADDED says whether D is more than a vector has.
    """
    at = tile_pointers(cache, ids, token, dims, stride_block, TOKEN, BLOCK_SIZE, TILE)  # [TILE, D]
    ZERO: tl.constexpr = 0 if cache.dtype.element_ty.is_int() else 0.0
    if MASKED:
        tokens = token + tl.arange(0, TILE)  # [TILE]
        inside = tokens < end
        if begin is not None:
            inside = inside & (tokens >= begin)
        return tl.load(at, mask=inside[:, None] & is_dim[None, :], other=ZERO)
    elif PADDED:
        return tl.load(at, mask=is_dim[None, :], other=ZERO)
    else:
        return tl.load(at)


@triton.jit
def load_scales(
    scales,
    ids,
    token,
    end,
    stride_block,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    MASKED: tl.constexpr,
    begin=None,
):
    """Return one head's scales ``[TILE]`` of the tile at ``token``.

    If MASKED, those before ``begin`` and from ``end`` on are zeros (``load_tile``).
    """
    at = tile_pointers(scales, ids, token, tl.arange(0, 1), stride_block, 1, BLOCK_SIZE, TILE)  # [TILE, 1]
    at = tl.reshape(at, [TILE])
    if MASKED:
        tokens = token + tl.arange(0, TILE)
        inside = tokens < end
        if begin is not None:
            inside = inside & (tokens >= begin)
        return tl.load(at, mask=inside, other=0.0)
    else:
        return tl.load(at)


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
def numbers(stored, DTYPE: tl.constexpr):
    """Return stored numbers in another type."""
    if stored.dtype == tl.int8:
        return whole(stored).to(DTYPE)
    else:
        return stored.to(DTYPE)


@triton.jit
def times_keys(q, keys):
    """Return ``q @ keysᵀ`` in float32, ``[M, TILE]``.

    A single row is multiplied without tensor cores: float32 is, which they would round to tf32 and of which
    few rows fit into registers.
    """
    if q.shape[0] == 1:
        return tl.sum(q.to(tl.float32) * numbers(keys, tl.float32), axis=1)[None, :]
    a = q  # [M, D]
    b = tl.trans(numbers(keys, q.dtype))  # [D, TILE]
    if INTERPRETED:  # which multiplies bfloat16 as the integers that it stores it in
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def plus_values(output, weights, values, DTYPE: tl.constexpr):
    """Return ``output + weights @ values`` in float32, ``[M, D]``; operands are rounded to DTYPE."""
    if output.shape[0] == 1:
        column = tl.reshape(weights, [weights.shape[1]])[:, None]  # [TILE, 1]
        return output + tl.sum(column * numbers(values, tl.float32), axis=0)[None, :]
    a = rounded(weights, DTYPE)  # [M, TILE]
    b = numbers(values, DTYPE)  # [TILE, D]
    if INTERPRETED:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, output, input_precision="ieee")


@triton.jit
def halves(pairs, INT8: tl.constexpr):
    """Return the first and the second number of each pair of int8 or e4m3, an int16, as float16."""
    if INTERPRETED:  # which runs no assembly
        first, second = pairs & 0xFF, (pairs >> 8) & 0xFF
        if INT8:
            return first.to(tl.int8).to(tl.float16), second.to(tl.int8).to(tl.float16)
        first = first.to(tl.uint8).to(tl.float8e4nv, bitcast=True)
        second = second.to(tl.uint8).to(tl.float8e4nv, bitcast=True)
        return first.to(tl.float16), second.to(tl.float16)
    # Two pairs a register: bytes 0 and 2 are the first numbers, 1 and 3 the second ones.
    if INT8:
        # A byte whose sign is turned is the number plus 128; below the byte 0x64 it is float16, 1024 more.
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 x, y, c;
            mov.b32 c, 0x64806480;
            xor.b32 x, $2, 0x80808080;
            prmt.b32 y, x, 0x64646464, 0x4240;
            sub.f16x2 $0, y, c;
            prmt.b32 y, x, 0x64646464, 0x4341;
            sub.f16x2 $1, y, c;
            }""",
            "=r,=r,r",
            [pairs],
            dtype=(tl.float16, tl.float16),
            is_pure=True,
            pack=2,
        )
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 x;
        .reg .b16 a, b;
        prmt.b32 x, $2, 0, 0x3120;
        mov.b32 {a, b}, x;
        cvt.rn.f16x2.e4m3x2 $0, a;
        cvt.rn.f16x2.e4m3x2 $1, b;
        }""",
        "=r,=r,r",
        [pairs],
        dtype=(tl.float16, tl.float16),
        is_pure=True,
        pack=2,
    )


@triton.jit
def whole(numbers):
    """Return int8 as float16, four numbers at a time (``halves``)."""
    if INTERPRETED:
        return numbers.to(tl.float16)
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 x, y, c;
        mov.b32 c, 0x64806480;
        xor.b32 x, $2, 0x80808080;
        prmt.b32 y, x, 0x64646464, 0x4140;
        sub.f16x2 $0, y, c;
        prmt.b32 y, x, 0x64646464, 0x4342;
        sub.f16x2 $1, y, c;
        }""",
        "=r,=r,r",
        [numbers],
        dtype=tl.float16,
        is_pure=True,
        pack=4,
    )


@triton.jit
def first_sums(
    sinks, heads, is_head, is_first, scale, ROWS: tl.constexpr, SINKS: tl.constexpr, EDGES: tl.constexpr
):
    """Return the highest product and the sum ``[M]`` that the online softmax starts with.

    A sink is a score without a value: the one that the softmax has seen before all tokens, in the first
    split. EDGES says that rows may see no token of a tile.
    """
    START: tl.constexpr = LEAST if EDGES else float("-inf")
    if SINKS:
        sink = tl.load(sinks + heads, mask=is_head, other=float("-inf"))
        sink = tl.where(is_first, sink, float("-inf"))
        has_sink = sink > float("-inf")
        return tl.where(has_sink, sink * 1.4426950408889634 / scale, START), tl.where(has_sink, 1.0, 0.0)
    else:
        return tl.full([ROWS], START, tl.float32), tl.zeros([ROWS], tl.float32)


@triton.jit
def weigh(
    q,
    keys,
    scale,
    visible,
    highest,
    total,
    MASKED: tl.constexpr,
    inner=0.0,
    CAPPED: tl.constexpr = False,
    k_scales=None,
):
    """Return a tile's weights ``[M, TILE]``, what earlier sums are multiplied by, maximum and sum ``[M]``.

    Scale and maximum cost one instruction a score, a product and a difference rounded together. The maximum's
    own product was rounded before: by up to 1 where it is 2²⁴, so that the highest weight, 1, could be
    anything beyond. There the scale is rounded to a power of two, whose products are exact: the scores, which
    are float32 as well, are known no better than that.
    """
    scores = times_keys(q, keys)  # [M, TILE]
    if k_scales is not None:
        scores *= k_scales[None, :]
    if CAPPED:  # tanh; of large products it is ±1
        scores = 1.0 - 2.0 / (1.0 + tl.exp2(scores * inner))
    if MASKED:
        scores = tl.where(visible, scores, float("-inf"))
    raised = tl.maximum(highest, tl.max(scores, axis=1))  # [M]
    factor = tl.zeros_like(raised) + scale
    power = (factor.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
    factor = tl.where(tl.abs(raised) * scale < 16777216.0, factor, power)  # [M]
    weights = tl.exp2(scores * factor[:, None] - (raised * factor)[:, None])  # [M, TILE]
    keep = tl.exp2((highest - raised) * scale)  # [M]
    total = total * keep + tl.sum(weights, axis=1)
    return weights, keep, raised, total


@triton.jit
def attend(
    q,
    keys,
    values,
    scale,
    visible,
    highest,
    total,
    output,
    MASKED: tl.constexpr,
    inner=0.0,
    CAPPED: tl.constexpr = False,
    k_scales=None,
    v_scales=None,
):
    """Take one tile into account, a step of online softmax.

    In papers ``highest`` is m, before it is multiplied by the scale, ``total`` is l, ``output`` acc, and what
    earlier sums are multiplied by alpha.

    Args:
        q: queries ``[M, D]``.
        keys: ``[TILE, D]``, as stored.
        values: ``[TILE, D]``, as stored.
        scale: of the scores, log₂ e included; positive (``Cache.upright``).
        visible: ``[M or 1, TILE]``, looked at if MASKED.
        highest: the highest product of a query and a key so far ``[M]``; at first minus infinity, or LEAST
            where a row may see no token of the first tile.
        total: the sum so far of ``2^(scale · (product - highest))``, ``[M]``.
        output: the sum so far of that times the values ``[M, D]``.
        MASKED: whether there are tokens that are not to be seen.
        inner: what products are multiplied by before a soft cap (``variant.Variant.arguments``).
        CAPPED: whether there is one.
        k_scales: what products with the keys of each token are multiplied by ``[TILE]``; None for 1.
        v_scales: what weights of each token are multiplied by ``[TILE]``; None for 1. Times the largest of a
            token's values they are as large as values are; times a scale, 127 or 448 times less, float16
            would hold too few bits of them.

    Returns:
        The new ``highest``, ``total`` and ``output``.
    """
    weights, keep, highest, total = weigh(
        q, keys, scale, visible, highest, total, MASKED, inner, CAPPED, k_scales
    )
    if v_scales is not None:
        weights *= v_scales[None, :]
    return highest, total, plus_values(output * keep[:, None], weights, values, q.dtype)


@triton.jit
def attend_pairs(
    q,
    keys,
    pairs,
    scale,
    visible,
    highest,
    total,
    even,
    odd,
    MASKED: tl.constexpr,
    INT8: tl.constexpr,
    inner=0.0,
    CAPPED: tl.constexpr = False,
    k_scales=None,
    v_scales=None,
):
    """Take one tile into account, as ``attend`` does, that is stored in int8 or e4m3.

    Keys are int8 ``[TILE, D]``, values int16 ``[TILE, D / 2]``, a pair each. Tensor cores want values
    transposed. The hardware transposes numbers of 16 bits while they are loaded from shared memory, those of
    8 bits one by one; so a pair is moved as one number. Its even and odd elements make two products, ``even``
    and ``odd`` ``[M, D / 2]``.
    """
    if not INT8:
        keys = keys.to(tl.float8e4nv, bitcast=True)
    weights, keep, highest, total = weigh(
        q, keys, scale, visible, highest, total, MASKED, inner, CAPPED, k_scales
    )
    if v_scales is not None:
        weights *= v_scales[None, :]
    first, second = halves(pairs, INT8)
    even = plus_values(even * keep[:, None], weights, first, q.dtype)
    odd = plus_values(odd * keep[:, None], weights, second, q.dtype)
    return highest, total, even, odd

"""Prefill attention: many queries a sequence, causal, over a paged context whose last tokens are theirs.

This is what a whole prompt, a chunk of one, a prompt after a cached prefix and a recomputation need. A
program takes a tile of queries of one sequence with all query heads that read one KV head: rows of a
matrix, query after query. So every key that is loaded serves the whole group. Tiles of tokens that all rows
see are not masked; those along the diagonal are, and are loaded like the others, some tiles ahead.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from pagesim.kernels.cache import Cache, by_eight
from pagesim.kernels.launch import MOST_REGISTERS, Launch
from pagesim.kernels.tiles import (
    attend,
    block_ids,
    first_seen,
    first_sums,
    in_vector,
    load_scales,
    load_tile,
    rounded,
    strided,
)
from pagesim.kernels.variant import PLAIN, Variant


@triton.jit
def prefill_kernel(
    q,  # [tokens, q_heads, HEAD_DIM]
    key_cache,
    value_cache,
    block_table,  # int32 [batch, max_blocks]
    context_lens,  # int32 [batch]
    query_starts,  # int32 [batch + 1]
    out,  # as q
    k_scales,  # HEAD_SCALES: float32 [kv_heads]; TOKEN_MAX: float32 [blocks, kv_heads, BLOCK_SIZE]
    v_scales,
    sinks,  # SINKS: float32 [q_heads]
    scale,  # log₂ e included
    inner,  # CAPPED: of what a tanh is taken
    v_scale,
    window,  # WINDOWED: tokens
    kv_heads,
    stride_q_token,
    stride_q_head,
    stride_out_token,
    stride_out_head,
    stride_table,
    stride_k_block,
    stride_k_head,
    stride_v_block,
    stride_v_head,
    stride_s_block,  # TOKEN_MAX: of scales
    stride_s_head,
    K_TOKEN: tl.constexpr,
    K_CHUNK: tl.constexpr,
    K_LANES: tl.constexpr,
    V_TOKEN: tl.constexpr,
    V_CHUNK: tl.constexpr,
    V_LANES: tl.constexpr,
    GROUP: tl.constexpr,  # query heads a KV head
    HEADS: tl.constexpr,  # of these, how many a program takes
    ROWS: tl.constexpr,
    BY_EIGHT: tl.constexpr,  # of the cache
    Q_BY_EIGHT: tl.constexpr,  # of q and out
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    HEAD_SCALES: tl.constexpr,
    TOKEN_MAX: tl.constexpr,  # the largest number stored, where every token and head has a scale; else 0
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    SINKS: tl.constexpr,
):
    """Attend with the query heads of one KV head of a few neighbouring queries."""
    HEAD_TILES: tl.constexpr = (GROUP + HEADS - 1) // HEADS
    QUERIES: tl.constexpr = ROWS // HEADS
    row = tl.program_id(1)
    kv_head = tl.program_id(0) // HEAD_TILES % kv_heads
    # The last queries see most: they begin first, and the short ones fill the gaps at the end.
    query_tile = (tl.num_programs(0) - 1 - tl.program_id(0)) // (HEAD_TILES * kv_heads)
    first_token = tl.load(query_starts + row)
    queries = tl.load(query_starts + row + 1) - first_token
    first = query_tile * QUERIES
    if first >= queries:
        return
    prefix = tl.load(context_lens + row) - queries

    r = tl.arange(0, ROWS)
    query = first + r // HEADS  # [ROWS]
    in_group = tl.program_id(0) % HEAD_TILES * HEADS + r % HEADS  # [ROWS]
    heads = kv_head * GROUP + in_group
    is_row = (query < queries) & (r < QUERIES * HEADS) & (in_group < GROUP)
    dim = tl.arange(0, PADDED_DIM)
    is_dim = dim < HEAD_DIM
    mask = is_row[:, None] & is_dim[None, :]
    token_of_row = (first_token + query).to(tl.int64)
    of_query = token_of_row * stride_q_token + strided(heads, stride_q_head, Q_BY_EIGHT)
    q_at = q + of_query[:, None] + dim[None, :]
    my_q = tl.load(q_at, mask=mask, other=0.0)  # [ROWS, D]
    if HEAD_SCALES:
        k_scale = tl.load(k_scales + kv_head)
        if CAPPED:
            inner *= k_scale
        else:
            scale *= k_scale
        v_scale = tl.load(v_scales + kv_head)
    if TOKEN_MAX:
        k_scales += kv_head.to(tl.int64) * stride_s_head
        v_scales += kv_head.to(tl.int64) * stride_s_head

    keys_of_head = key_cache + strided(kv_head.to(tl.int64), stride_k_head, BY_EIGHT)
    values_of_head = value_cache + strided(kv_head.to(tl.int64), stride_v_head, BY_EIGHT)
    k_dim = in_vector(dim, K_CHUNK, K_LANES)
    v_dim = in_vector(dim, V_CHUNK, V_LANES)
    table = block_table + row.to(tl.int64) * stride_table
    highest, total = first_sums(sinks, heads, is_row, True, scale, ROWS, SINKS, WINDOWED)  # m and l
    output = tl.zeros([ROWS, PADDED_DIM], tl.float32)  # acc (``tiles.attend``)

    end = prefix + tl.minimum(first + QUERIES, queries)
    seen_by_all = (prefix + first + 1) // TILE
    tiles = tl.cdiv(end, TILE)
    start = 0  # no tile before it is read
    whole = 0  # from there on all rows see all tokens of a tile, up to seen_by_all
    begin = None
    if WINDOWED:
        begin = first_seen(prefix + first + 1, window, 1, True)
        start = begin // TILE
        whole = tl.minimum(tl.cdiv(first_seen(end, window, 1, True), TILE), seen_by_all)
    PADDED: tl.constexpr = HEAD_DIM != PADDED_DIM
    # The next tile's block is looked up a tile ahead and carried along, see ``decode.py``.
    ids = block_ids(table, start * TILE, end, row, BLOCK_SIZE, TILE, begin)
    # Tiles along a window's edge, those that all rows see whole, and those along the diagonal.
    for PART in tl.static_range(0 if WINDOWED else 1, 3):
        from_tile = start if PART == 0 else whole if PART == 1 else seen_by_all
        to_tile = whole if PART == 0 else seen_by_all if PART == 1 else tiles
        for step in tl.range(from_tile, to_tile, num_stages=STAGES):
            token = step * TILE
            keys = load_tile(
                keys_of_head, ids, token, end, k_dim, is_dim, stride_k_block,
                K_TOKEN, BLOCK_SIZE, TILE, PADDED, PART != 1, begin,
            )  # [TILE, D]  # fmt: skip
            values = load_tile(
                values_of_head, ids, token, end, v_dim, is_dim, stride_v_block,
                V_TOKEN, BLOCK_SIZE, TILE, PADDED, PART != 1, begin,
            )  # [TILE, D]  # fmt: skip
            of_keys = None
            of_values = None
            if TOKEN_MAX:  # [TILE]
                of_keys = load_scales(
                    k_scales, ids, token, end, stride_s_block, BLOCK_SIZE, TILE, PART != 1, begin
                )
                of_values = load_scales(
                    v_scales, ids, token, end, stride_s_block, BLOCK_SIZE, TILE, PART != 1, begin
                )
                of_values *= TOKEN_MAX
            ids = block_ids(table, token + TILE, end, row, BLOCK_SIZE, TILE, begin)
            tokens = (token + tl.arange(0, TILE))[None, :]
            visible = tokens <= (prefix + query)[:, None]  # [ROWS, TILE]
            if WINDOWED:
                visible = visible & (tokens > (prefix + query)[:, None] - window)
            highest, total, output = attend(
                my_q, keys, values, scale, visible, highest, total, output, PART != 1,
                inner, CAPPED, of_keys, of_values,
            )  # fmt: skip

    if WINDOWED:  # rows beyond the queries may see nothing
        total = tl.where(total > 0, total, 1.0)
    output *= (v_scale / total)[:, None]
    of_query = token_of_row * stride_out_token + strided(heads, stride_out_head, Q_BY_EIGHT)
    out_at = out + of_query[:, None] + dim[None, :]
    tl.store(out_at, rounded(output, out.dtype.element_ty), mask=mask)


class Shape(NamedTuple):
    """How a prefill is cut up: rows and tokens a tile, warps, stages."""

    rows: int
    tile: int
    num_warps: int
    num_stages: int


def shape(
    q: Tensor,
    group: int,
    max_query_len: int,
    capability: int,
    *,
    capped: bool = False,
    token_scales: bool = False,
) -> Shape:
    """Return the largest tiles whose registers do not spill.

    On compute capability 8 a warp multiplies 16 rows: where there are fewer for each of the warps, two of
    them share rows and meet for every maximum and sum: 610 instructions a turn, not 374, for equal products.

    Args:
        q: queries ``[tokens, q_heads, D]``.
        group: query heads a KV head.
        max_query_len: the most queries of a sequence.
        capability: compute capability times ten; from 90 on, operands of tensor cores stay in shared memory.
        capped: whether scores have a soft cap, which takes registers.
        token_scales: whether every token of the cache has scales, which take registers.
    """
    head_dim, rows = q.shape[-1], max_query_len * group
    wide = head_dim > 128
    if q.dtype == torch.float32:
        return Shape(1, 16, 4, 3) if wide else Shape(16, 16, 8, 2)
    if head_dim > 256:
        return Shape(32, 16, 8, 2)
    if capability < 90:
        if wide:
            return Shape(64, 32, 8, 2)
        if rows <= 32:
            return Shape(32, 64, 4, 3)
        if token_scales and (capped or head_dim % 16):  # rows of which no load takes 16 bytes
            return Shape(64, 32, 8, 3)
        if head_dim <= 32:
            return Shape(128, 64, 8, 2)
        return Shape(128, 64 if head_dim <= 64 else 32, 8, 3)
    if wide and token_scales:
        return Shape(64, 16, 8, 2)
    if rows <= 64 or (wide and capped):
        return Shape(64, 32, 8, 2) if wide else Shape(64, 64, 4, 3)
    if wide:
        return Shape(128, 32, 8, 2)
    if token_scales:
        return Shape(128, 32, 8, 3)
    return Shape(128, 64, 8, 3)


def launch(
    q: Tensor,
    cache: Cache,
    block_table: Tensor,
    context_lens: Tensor,
    query_starts: Tensor,
    max_query_len: int,
    scale: float | None,
    out: Tensor,
    capability: int = 90,
    variant: Variant = PLAIN,
) -> Launch:
    """Return what is to be run on a GPU of this compute capability (times ten)."""
    kv_heads = cache.sizes.kv_heads
    group = q.shape[1] // kv_heads
    capped = variant.softcap is not None
    cut = shape(q, group, max_query_len, capability, capped=capped, token_scales=cache.has_token_scales)
    heads = min(group, cut.rows)
    q, positive = cache.upright(q, scale)
    arguments = {
        **cache.place,
        **cache.factors,
        "q": q,
        "block_table": block_table,
        "context_lens": context_lens,
        "query_starts": query_starts,
        "out": out,
        **variant.arguments(positive, q),
        "kv_heads": kv_heads,
        "stride_q_token": q.stride(0),
        "stride_q_head": q.stride(1),
        "stride_out_token": out.stride(0),
        "stride_out_head": out.stride(1),
        "stride_table": block_table.stride(0),
        "Q_BY_EIGHT": q.shape[-1] % 16 > 0 and by_eight(*q.stride()[:-1], *out.stride()[:-1]),
        "GROUP": group,
        "HEADS": heads,
        "ROWS": cut.rows,
        "TILE": cut.tile,
        "STAGES": cut.num_stages,
    }
    query_tiles = -(-max_query_len // (cut.rows // heads))
    programs = query_tiles * kv_heads * -(-group // heads)
    most = MOST_REGISTERS if cache.sizes.head_dim > 256 else None
    grid = (programs, len(context_lens))
    return Launch(prefill_kernel, grid, arguments, cut.num_warps, cut.num_stages, most)

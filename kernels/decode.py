"""Decode attention: one query a sequence over a paged or a contiguous context, in one pass or in splits.

A program takes one KV head of one sequence, with the query heads that read it as the rows of a matrix (at
least 16, so that tensor cores multiply it, and no more than registers hold), and one split of its tokens.
Decoding moves every key and value once and computes little, so what counts is bytes in flight:

- The block id of the next tile is loaded while this one is computed and carried along. Looked up where it
  is used, it would stand in the chain of addresses, and the loop could be pipelined only half as deep.
- Where a block is at least a tile, a tile needs one id, a scalar. Where it is smaller, each token needs its
  own.
- Keys and values are two loads, so two groups of asynchronous copies: scores are computed while the values of
  the same tile still arrive. In one group the keys would wait for them.
- Only the last tile of a split is masked; it stands outside of the loop.
- Where most programs of a grid would find nothing, they take what they do from a list (``work_list.py``).
- How long a split is follows from the sequence's own length, so that a plan for the longest context there can
  be, as a CUDA graph needs it, cuts short ones too.

The contiguous kernel is this one with the sequence itself as the only block, so that the two differ in
paging alone.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pagesim.kernels import reduce
from pagesim.kernels.cache import Cache, by_eight
from pagesim.kernels.launch import MOST_REGISTERS, Launch
from pagesim.kernels.planner import DecodePlan, query_rows
from pagesim.kernels.tiles import (
    attend,
    attend_pairs,
    block_ids,
    first_seen,
    first_sums,
    in_vector,
    load_scales,
    load_tile,
    rounded,
    split_tokens,
    strided,
)
from pagesim.kernels.variant import PLAIN, Variant
from pagesim.kernels.work_list import work_list


@triton.jit
def attend_tile(
    queries, scale, keys_of_head, values_of_head, table, row, ids, token, end,
    k_dim, v_dim, is_dim, is_value, stride_k_block, stride_v_block, highest, total, output, odd,
    K_TOKEN: tl.constexpr, V_TOKEN: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr,
    PADDED: tl.constexpr, PAIRED: tl.constexpr, MASKED: tl.constexpr, LAST: tl.constexpr,
    begin, position, window, inner, CAPPED: tl.constexpr,
    k_scales, v_scales, stride_s_block, TOKEN_MAX: tl.constexpr,
):  # fmt: skip
    """Load the tile at ``token`` and take it into account; return the next tile's ids and the new sums.

    The arguments are the kernel's own values. The ids are looked up before the tile is loaded: loads are
    waited for in the order in which they began.
    """
    next_ids = ids
    if not LAST:
        next_ids = block_ids(table, token + TILE, end, row, BLOCK_SIZE, TILE, begin)
    keys = load_tile(
        keys_of_head, ids, token, end, k_dim, is_dim, stride_k_block,
        K_TOKEN, BLOCK_SIZE, TILE, PADDED, MASKED, begin,
    )  # [TILE, D]  # fmt: skip
    values = load_tile(
        values_of_head, ids, token, end, v_dim, is_value, stride_v_block,
        V_TOKEN, BLOCK_SIZE, TILE, PADDED, MASKED, begin,
    )  # [TILE, D]  # fmt: skip
    of_keys = None
    of_values = None
    if TOKEN_MAX:  # [TILE]
        of_keys = load_scales(k_scales, ids, token, end, stride_s_block, BLOCK_SIZE, TILE, MASKED, begin)
        of_values = load_scales(v_scales, ids, token, end, stride_s_block, BLOCK_SIZE, TILE, MASKED, begin)
        of_values *= TOKEN_MAX
    tokens = (token + tl.arange(0, TILE))[None, :]  # [1, TILE]
    visible = tokens < end
    if position is not None:
        visible = tokens <= position[:, None]  # [ROWS, TILE]
        if window is not None:
            visible = visible & (tokens > position[:, None] - window)
    if PAIRED:
        highest, total, output, odd = attend_pairs(
            queries, keys, values, scale, visible, highest, total, output, odd, MASKED, TOKEN_MAX == 127,
            inner, CAPPED, of_keys, of_values,
        )  # fmt: skip
    else:
        highest, total, output = attend(
            queries, keys, values, scale, visible, highest, total, output, MASKED,
            inner, CAPPED, of_keys, of_values,
        )  # fmt: skip
    return next_ids, highest, total, output, odd


@triton.jit
def decode_kernel(
    q,  # [batch, QUERIES, q_heads, HEAD_DIM]
    key_cache,
    value_cache,
    block_table,  # int32 [batch, max_blocks]
    context_lens,  # int32 [batch]
    work,  # LISTED: int32 [programs, 3], a sequence, a split of it, its splits
    out,  # ONE_PASS: as q; else float32 [batch, QUERIES, q_heads, splits, HEAD_DIM]
    lse,  # unless ONE_PASS: float32 [batch, QUERIES, q_heads, splits], base 2
    k_scales,  # HEAD_SCALES: float32 [kv_heads]; TOKEN_MAX: float32 [blocks, kv_heads, BLOCK_SIZE]
    v_scales,
    sinks,  # SINKS: float32 [q_heads]
    scale,  # log₂ e included
    inner,  # CAPPED: of what a tanh is taken
    v_scale,
    window,  # WINDOWED: tokens
    stride_q_row,
    stride_q_query,
    stride_q_head,
    stride_out_row,
    stride_out_query,
    stride_out_head,
    stride_table,
    stride_k_block,
    stride_k_head,
    stride_v_block,
    stride_v_head,
    stride_s_block,  # TOKEN_MAX: of scales
    stride_s_head,
    tokens_per_split,
    most_splits,  # of a sequence: partial results have room for as many
    K_TOKEN: tl.constexpr,
    K_CHUNK: tl.constexpr,
    K_LANES: tl.constexpr,
    V_TOKEN: tl.constexpr,
    V_CHUNK: tl.constexpr,
    V_LANES: tl.constexpr,
    QUERIES: tl.constexpr,  # a sequence, its last tokens
    GROUP: tl.constexpr,  # query heads a KV head
    ROWS: tl.constexpr,
    BY_EIGHT: tl.constexpr,  # of the cache
    Q_BY_EIGHT: tl.constexpr,  # of q and out
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,  # 0: a sequence is one block
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    HEAD_SCALES: tl.constexpr,
    TOKEN_MAX: tl.constexpr,  # the largest number stored, where every token and head has a scale; else 0
    PAIRED: tl.constexpr,  # keys are int8, or e4m3 as int8, values are pairs of these as int16
    LISTED: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    SINKS: tl.constexpr,
    ONE_PASS: tl.constexpr,
):
    """Attend with the query heads of one KV head of one sequence to one split of its tokens."""
    HEAD_TILES: tl.constexpr = (QUERIES * GROUP + ROWS - 1) // ROWS
    kv_head = tl.program_id(0) // HEAD_TILES
    if LISTED:
        item = work + tl.program_id(1) * 3
        row = tl.load(item)
        split = tl.load(item + 1)
        splits = tl.load(item + 2)
    else:
        row = tl.program_id(1)
        split = tl.program_id(2)
        splits = most_splits
    length = tl.load(context_lens + row)
    begin = first_seen(length, window, QUERIES, WINDOWED)
    first = begin // TILE * TILE  # no tile before it is read
    own_tokens = split_tokens(length - first, tokens_per_split, splits, TILE)
    start = first + split * own_tokens
    end = tl.minimum(start + own_tokens, length)
    if not ONE_PASS:
        if start >= end:
            return

    of_kv_head = tl.program_id(0) % HEAD_TILES * ROWS + tl.arange(0, ROWS)  # [ROWS]
    query, in_group = of_kv_head // GROUP, of_kv_head % GROUP
    if QUERIES == 1:
        query, in_group = of_kv_head * 0, of_kv_head
    heads = kv_head * GROUP + in_group
    is_row = of_kv_head < QUERIES * GROUP
    dim = tl.arange(0, PADDED_DIM)
    is_head = is_row[:, None]  # [ROWS, 1]
    is_dim = dim < HEAD_DIM  # [D]
    queries = tl.load(  # [ROWS, D]
        q
        + row.to(tl.int64) * stride_q_row
        + (query * stride_q_query + strided(heads, stride_q_head, Q_BY_EIGHT))[:, None]
        + dim[None, :],
        mask=is_head & is_dim[None, :],
        other=0.0,
    )
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
    # Strides count single numbers: of half of one Triton would not know that it is a multiple of 16 bytes.
    PACKED: tl.constexpr = 2 if PAIRED else 1
    stride_v_block = stride_v_block // PACKED
    values_of_head = value_cache + strided(kv_head.to(tl.int64), stride_v_head // PACKED, BY_EIGHT, PACKED)
    k_dim = in_vector(dim, K_CHUNK, K_LANES)  # [D]
    v_in = tl.arange(0, PADDED_DIM // PACKED)
    v_dim = in_vector(v_in, V_CHUNK, V_LANES)  # [D], or [D / 2] if PAIRED, as is what has D for values below
    is_value = v_in < HEAD_DIM // PACKED
    table = block_table + row.to(tl.int64) * stride_table
    PADDED: tl.constexpr = HEAD_DIM != PADDED_DIM
    # Which tiles have an edge of what is seen depends on the row: then all are masked, in one loop. Of wide
    # heads they are, too: the last tile, outside of the loop, would take registers that there are not.
    EDGES: tl.constexpr = WINDOWED or QUERIES > 1 or PADDED_DIM > 256
    position = length - QUERIES + query if EDGES else None  # [ROWS]
    window = window if WINDOWED else None
    begin = begin if WINDOWED else None
    highest, total = first_sums(sinks, heads, is_row, split == 0, scale, ROWS, SINKS, EDGES)  # m and l
    output = tl.zeros([ROWS, PADDED_DIM // PACKED], tl.float32)  # acc (``tiles.attend``)
    odd = tl.zeros_like(output)  # PAIRED: of the odd elements, output has the even ones

    ids = block_ids(table, start, end, row, BLOCK_SIZE, TILE, begin)  # one, or [TILE]
    tiles = (tl.maximum(end - start, 0) + (TILE - 1 if EDGES else 0)) // TILE
    for step in tl.range(0, tiles, num_stages=STAGES):
        token = start + step * TILE
        ids, highest, total, output, odd = attend_tile(
            queries, scale, keys_of_head, values_of_head, table, row, ids, token, end,
            k_dim, v_dim, is_dim, is_value, stride_k_block, stride_v_block, highest, total, output, odd,
            K_TOKEN, V_TOKEN // PACKED, BLOCK_SIZE, TILE, PADDED, PAIRED, EDGES, False,
            begin, position, window, inner, CAPPED, k_scales, v_scales, stride_s_block, TOKEN_MAX,
        )  # fmt: skip
    token = start + tiles * TILE
    if not EDGES and token < end:
        ids, highest, total, output, odd = attend_tile(
            queries, scale, keys_of_head, values_of_head, table, row, ids, token, end,
            k_dim, v_dim, is_dim, is_value, stride_k_block, stride_v_block, highest, total, output, odd,
            K_TOKEN, V_TOKEN // PACKED, BLOCK_SIZE, TILE, PADDED, PAIRED, True, True,
            begin, position, window, inner, CAPPED, k_scales, v_scales, stride_s_block, TOKEN_MAX,
        )  # fmt: skip
    if PAIRED:
        output = tl.interleave(output, odd)

    # A row that has seen no token has no sum; its output is zeros.
    output *= (v_scale / tl.where(total > 0, total, 1.0))[:, None]
    if ONE_PASS:
        at = out + row.to(tl.int64) * stride_out_row + query * stride_out_query
        at += strided(heads, stride_out_head, Q_BY_EIGHT)
    else:
        q_heads = tl.num_programs(0) // HEAD_TILES * GROUP
        of_batch = (row.to(tl.int64) * QUERIES + query) * q_heads + heads  # [ROWS]
        part = of_batch * most_splits + split
        at = out + part * HEAD_DIM
        sums = highest * scale + tl.log2(tl.where(total > 0, total, 1.0) if EDGES else total)
        if EDGES:
            sums = tl.where(total > 0, sums, float("-inf"))
        tl.store(lse + part, sums, mask=is_row)
    tl.store(
        at[:, None] + dim[None, :], rounded(output, out.dtype.element_ty), mask=is_head & is_dim[None, :]
    )


def launches(
    q: Tensor,
    cache: Cache,
    block_table: Tensor | None,
    context_lens: Tensor,
    scale: float | None,
    plan: DecodePlan,
    out: Tensor,
    variant: Variant = PLAIN,
) -> list[Launch]:
    """Return what is to be run, in order; a cache that is not paged has no block table."""
    batch, queries = len(q), q.shape[1] if q.dim() == 4 else 1
    q_heads, head_dim = q.shape[-2:]
    kv_heads = cache.sizes.kv_heads
    group = q_heads // kv_heads
    rows = 1 if q.dtype == torch.float32 else query_rows(queries * group, head_dim)
    if cache.has_token_scales:  # which take registers: with 64 rows triton 3.6.0 spills
        rows = min(rows, 32)
    one_pass = plan.num_splits == 1
    partial, lse = (out, out) if one_pass else reduce.workspace(q, plan.num_splits)
    # A single row is multiplied without tensor cores, which need no values transposed.
    paired = cache.pairs if rows > 1 else None
    listed = work_list(plan, batch, q.device)
    q, positive = cache.upright(q, scale)
    of_q, of_out = q.stride(), out.stride()
    arguments = {
        **(paired or cache.place),
        **cache.factors,
        "q": q,
        "block_table": context_lens if block_table is None else block_table,
        "context_lens": context_lens,
        "work": context_lens if listed is None else listed.items,
        "out": partial,
        "lse": lse,
        **variant.arguments(positive, q),
        "stride_q_row": of_q[0],
        "stride_q_query": of_q[-3],
        "stride_q_head": of_q[-2],
        "stride_out_row": of_out[0],
        "stride_out_query": of_out[-3],
        "stride_out_head": of_out[-2],
        "stride_table": 0 if block_table is None else block_table.stride(0),
        "tokens_per_split": plan.tokens_per_split,
        "most_splits": plan.num_splits,
        "Q_BY_EIGHT": head_dim % 16 > 0 and by_eight(*of_q[:-1], *of_out[:-1]),
        "QUERIES": queries,
        "GROUP": group,
        "ROWS": rows,
        "TILE": plan.tile,
        "STAGES": plan.num_stages,
        "PAIRED": paired is not None,
        "LISTED": listed is not None,
        "ONE_PASS": one_pass,
    }
    programs = (batch, plan.num_splits) if listed is None else (len(listed.items), 1)
    grid = (kv_heads * -(-queries * group // rows), *programs)
    # Of these ptxas would take 170 registers, and a multiprocessor would hold two programs in place of three.
    tight = cache.has_token_scales and q.dtype == torch.float16 and cache.is_fp8 and rows == 16
    most = 168 if tight and head_dim <= 128 and plan.num_warps == 4 else None
    if head_dim > 256:
        most = MOST_REGISTERS
    attention = Launch(decode_kernel, grid, arguments, plan.num_warps, plan.num_stages, most)
    return (
        [attention]
        if one_pass
        else [attention, reduce.launch(partial, lse, context_lens, plan, listed, out, variant)]
    )

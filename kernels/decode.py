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
from pagesim.kernels.cache import Cache
from pagesim.kernels.launch import Launch
from pagesim.kernels.planner import DecodePlan, query_rows
from pagesim.kernels.tiles import (
    attend,
    attend_pairs,
    block_ids,
    in_vector,
    load_scales,
    load_tile,
    rounded,
    split_tokens,
)


@triton.jit
def attend_tile(
    queries, scale, keys_of_head, values_of_head, table, row, ids, token, end,
    k_dim, v_dim, is_dim, is_value, stride_k_block, stride_v_block, highest, total, output, odd,
    K_TOKEN: tl.constexpr, V_TOKEN: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr,
    PADDED: tl.constexpr, PAIRED: tl.constexpr, MASKED: tl.constexpr,
    k_scales, v_scales, stride_s_block, TOKEN_MAX: tl.constexpr,
):  # fmt: skip
    """Load the tile at ``token`` and take it into account; return the next tile's ids and the new sums.

    The arguments are the kernel's own values. The ids are looked up before the tile is loaded: loads are
    waited for in the order in which they began.
    """
    next_ids = ids
    if not MASKED:
        next_ids = block_ids(table, token + TILE, end, row, BLOCK_SIZE, TILE)
    keys = load_tile(
        keys_of_head, ids, token, end, k_dim, is_dim, stride_k_block,
        K_TOKEN, BLOCK_SIZE, TILE, PADDED, MASKED,
    )  # [TILE, D]  # fmt: skip
    values = load_tile(
        values_of_head, ids, token, end, v_dim, is_value, stride_v_block,
        V_TOKEN, BLOCK_SIZE, TILE, PADDED, MASKED,
    )  # [TILE, D]  # fmt: skip
    of_keys = None
    of_values = None
    if TOKEN_MAX:  # [TILE]
        of_keys = load_scales(k_scales, ids, token, end, stride_s_block, BLOCK_SIZE, TILE, MASKED)
        of_values = load_scales(v_scales, ids, token, end, stride_s_block, BLOCK_SIZE, TILE, MASKED)
        of_values *= TOKEN_MAX
    visible = (token + tl.arange(0, TILE) < end)[None, :]  # [1, TILE]
    if PAIRED:
        highest, total, output, odd = attend_pairs(
            queries,
            keys,
            values,
            scale,
            visible,
            highest,
            total,
            output,
            odd,
            MASKED,
            TOKEN_MAX == 127,
            of_keys,
            of_values,
        )
    else:
        highest, total, output = attend(
            queries, keys, values, scale, visible, highest, total, output, MASKED, of_keys, of_values
        )
    return next_ids, highest, total, output, odd


@triton.jit
def decode_kernel(
    q,  # [batch, q_heads, HEAD_DIM]
    key_cache,
    value_cache,
    block_table,  # int32 [batch, max_blocks]
    context_lens,  # int32 [batch]
    out,  # ONE_PASS: as q; else float32 [batch, q_heads, splits, HEAD_DIM]
    lse,  # unless ONE_PASS: float32 [batch, q_heads, splits], base 2
    k_scales,  # HEAD_SCALES: float32 [kv_heads]; TOKEN_MAX: float32 [blocks, kv_heads, BLOCK_SIZE]
    v_scales,
    scale,  # log₂ e included
    v_scale,
    stride_q_row,
    stride_q_head,
    stride_out_row,
    stride_out_head,
    stride_table,
    stride_k_block,
    stride_k_head,
    stride_v_block,
    stride_v_head,
    stride_s_block,  # TOKEN_MAX: of scales
    stride_s_head,
    tokens_per_split,
    K_TOKEN: tl.constexpr,
    K_CHUNK: tl.constexpr,
    K_LANES: tl.constexpr,
    V_TOKEN: tl.constexpr,
    V_CHUNK: tl.constexpr,
    V_LANES: tl.constexpr,
    GROUP: tl.constexpr,  # query heads a KV head
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,  # 0: a sequence is one block
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    HEAD_SCALES: tl.constexpr,
    TOKEN_MAX: tl.constexpr,  # the largest number stored, where every token and head has a scale; else 0
    PAIRED: tl.constexpr,  # keys are int8, or e4m3 as int8, values are pairs of these as int16
    ONE_PASS: tl.constexpr,
):
    """Attend with the query heads of one KV head of one sequence to one split of its tokens."""
    HEAD_TILES: tl.constexpr = (GROUP + ROWS - 1) // ROWS
    kv_head = tl.program_id(0) // HEAD_TILES
    row = tl.program_id(1)
    split = tl.program_id(2)
    length = tl.load(context_lens + row)
    own_tokens = split_tokens(length, tokens_per_split, tl.num_programs(2), TILE)
    start = split * own_tokens
    end = tl.minimum(start + own_tokens, length)
    if not ONE_PASS:
        if start >= end:
            return

    in_group = tl.program_id(0) % HEAD_TILES * ROWS + tl.arange(0, ROWS)  # [ROWS]
    heads = kv_head * GROUP + in_group
    dim = tl.arange(0, PADDED_DIM)
    is_head = (in_group < GROUP)[:, None]  # [ROWS, 1]
    is_dim = dim < HEAD_DIM  # [D]
    queries = tl.load(  # [ROWS, D]
        q + row.to(tl.int64) * stride_q_row + (heads * stride_q_head)[:, None] + dim[None, :],
        mask=is_head & is_dim[None, :],
        other=0.0,
    )
    if HEAD_SCALES:
        scale *= tl.load(k_scales + kv_head)
        v_scale = tl.load(v_scales + kv_head)
    if TOKEN_MAX:
        k_scales += kv_head.to(tl.int64) * stride_s_head
        v_scales += kv_head.to(tl.int64) * stride_s_head

    keys_of_head = key_cache + kv_head.to(tl.int64) * stride_k_head
    # Strides count single numbers: of half of one Triton would not know that it is a multiple of 16 bytes.
    PACKED: tl.constexpr = 2 if PAIRED else 1
    stride_v_block = stride_v_block // PACKED
    values_of_head = value_cache + kv_head.to(tl.int64) * (stride_v_head // PACKED)
    k_dim = in_vector(dim, K_CHUNK, K_LANES)  # [D]
    v_in = tl.arange(0, PADDED_DIM // PACKED)
    v_dim = in_vector(v_in, V_CHUNK, V_LANES)  # [D], or [D / 2] if PAIRED, as is what has D for values below
    is_value = v_in < HEAD_DIM // PACKED
    table = block_table + row.to(tl.int64) * stride_table
    PADDED: tl.constexpr = HEAD_DIM != PADDED_DIM
    highest = tl.full([ROWS], float("-inf"), tl.float32)  # m, l and acc (``tiles.attend``)
    total = tl.zeros([ROWS], tl.float32)
    output = tl.zeros([ROWS, PADDED_DIM // PACKED], tl.float32)
    odd = tl.zeros_like(output)  # PAIRED: of the odd elements, output has the even ones

    ids = block_ids(table, start, end, row, BLOCK_SIZE, TILE)  # one, or [TILE]
    tiles = tl.maximum(end - start, 0) // TILE  # whole ones
    for step in tl.range(0, tiles, num_stages=STAGES):
        token = start + step * TILE
        ids, highest, total, output, odd = attend_tile(
            queries, scale, keys_of_head, values_of_head, table, row, ids, token, end,
            k_dim, v_dim, is_dim, is_value, stride_k_block, stride_v_block, highest, total, output, odd,
            K_TOKEN, V_TOKEN // PACKED, BLOCK_SIZE, TILE, PADDED, PAIRED, False,
            k_scales, v_scales, stride_s_block, TOKEN_MAX,
        )  # fmt: skip
    token = start + tiles * TILE
    if token < end:
        ids, highest, total, output, odd = attend_tile(
            queries, scale, keys_of_head, values_of_head, table, row, ids, token, end,
            k_dim, v_dim, is_dim, is_value, stride_k_block, stride_v_block, highest, total, output, odd,
            K_TOKEN, V_TOKEN // PACKED, BLOCK_SIZE, TILE, PADDED, PAIRED, True,
            k_scales, v_scales, stride_s_block, TOKEN_MAX,
        )  # fmt: skip
    if PAIRED:
        output = tl.interleave(output, odd)

    # Only a sequence without tokens has no sum; its output is zeros.
    output *= (v_scale / tl.where(total > 0, total, 1.0))[:, None]
    if ONE_PASS:
        at = out + row.to(tl.int64) * stride_out_row + heads * stride_out_head
    else:
        part = (row.to(tl.int64) * (tl.num_programs(0) // HEAD_TILES * GROUP) + heads) * tl.num_programs(
            2
        ) + split
        at = out + part * HEAD_DIM
        tl.store(lse + part, highest * scale + tl.log2(total), mask=in_group < GROUP)
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
) -> list[Launch]:
    """Return what is to be run, in order; a cache that is not paged has no block table."""
    batch, q_heads, head_dim = q.shape
    kv_heads = cache.sizes.kv_heads
    group = q_heads // kv_heads
    rows = 1 if q.dtype == torch.float32 else query_rows(group, head_dim)
    if cache.has_token_scales:  # which take registers: with 64 rows triton 3.6.0 spills
        rows = min(rows, 32)
    one_pass = plan.num_splits == 1
    partial, lse = (out, out) if one_pass else reduce.workspace(q, plan.num_splits)
    # A single row is multiplied without tensor cores, which need no values transposed.
    paired = cache.pairs if rows > 1 else None
    q, positive = cache.upright(q, scale)
    arguments = {
        **(paired or cache.place),
        **cache.factors,
        "q": q,
        "block_table": context_lens if block_table is None else block_table,
        "context_lens": context_lens,
        "out": partial,
        "lse": lse,
        "scale": positive,
        "stride_q_row": q.stride(0),
        "stride_q_head": q.stride(1),
        "stride_out_row": out.stride(0),
        "stride_out_head": out.stride(1),
        "stride_table": 0 if block_table is None else block_table.stride(0),
        "tokens_per_split": plan.tokens_per_split,
        "GROUP": group,
        "ROWS": rows,
        "TILE": plan.tile,
        "STAGES": plan.num_stages,
        "PAIRED": paired is not None,
        "ONE_PASS": one_pass,
    }
    grid = (kv_heads * -(-group // rows), batch, plan.num_splits)
    # Of these ptxas would take 170 registers, and a multiprocessor would hold two programs in place of three.
    tight = cache.has_token_scales and q.dtype == torch.float16 and cache.is_fp8 and rows == 16
    most = 168 if tight and head_dim <= 128 and plan.num_warps == 4 else None
    attention = Launch(decode_kernel, grid, arguments, plan.num_warps, plan.num_stages, most)
    return [attention] if one_pass else [attention, reduce.launch(partial, lse, context_lens, plan, out)]

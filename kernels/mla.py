"""Decode attention over latents (MLA): all query heads read one vector a token, whose front is its value.

Multi-head latent attention (DeepSeek-V2, 2024) caches for each token one vector of ``latent`` numbers, from
which keys and values of all heads could be made, and ``rope`` numbers more, the part of the keys that is
rotated. With the projections folded into queries and output, decoding is attention with one KV head: its keys
are the whole vectors and its values their first ``latent`` numbers. Two things differ from ``decode.py``:

- A tile is loaded once: latents that were multiplied as keys are multiplied as values from where they are.
- Many query heads share a token: 128 in DeepSeek-V3, about 240 FLOP a byte, as many as a GPU computes in the
  time in which it reads the byte. So a program takes as many heads as registers hold.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from pagesim.kernels import reduce
from pagesim.kernels.cache import LOG2_E
from pagesim.kernels.latents import LatentCache, head_rows
from pagesim.kernels.launch import Launch
from pagesim.kernels.planner import DecodePlan
from pagesim.kernels.tiles import (
    block_ids,
    plus_values,
    rounded,
    split_tokens,
    tile_pointers,
    times_keys,
)

WRITE_TOKENS = 16
"""Tokens that a program writes."""


@triton.jit
def latent_decode_kernel(
    q,  # [batch, q_heads, LATENT + ROPE]
    cache,  # [blocks, BLOCK_SIZE, LATENT + ROPE]
    block_table,  # int32 [batch, max_blocks]
    context_lens,  # int32 [batch]
    out,  # ONE_PASS: [batch, q_heads, LATENT]; else float32 [batch, q_heads, splits, LATENT]
    lse,  # unless ONE_PASS: float32 [batch, q_heads, splits], base 2
    scale,  # log₂ e included
    q_heads,
    stride_q_row,
    stride_q_head,
    stride_out_row,
    stride_out_head,
    stride_table,
    stride_block,
    tokens_per_split,
    TOKEN: tl.constexpr,
    ROWS: tl.constexpr,
    LATENT: tl.constexpr,
    ROPE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    ONE_PASS: tl.constexpr,
):
    """Attend with some query heads of one sequence to one split of its tokens."""
    row = tl.program_id(1)
    split = tl.program_id(2)
    length = tl.load(context_lens + row)
    own_tokens = split_tokens(length, tokens_per_split, tl.num_programs(2), TILE)
    start = split * own_tokens
    end = tl.minimum(start + own_tokens, length)
    if not ONE_PASS:
        if start >= end:
            return

    heads = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_head = heads < q_heads
    latent = tl.arange(0, LATENT)
    rope = LATENT + tl.arange(0, ROPE)
    q_at = q + row.to(tl.int64) * stride_q_row + (heads * stride_q_head)[:, None]
    q_latent = tl.load(q_at + latent[None, :], mask=is_head[:, None], other=0.0)  # [ROWS, LATENT]
    q_rope = tl.load(q_at + rope[None, :], mask=is_head[:, None], other=0.0)  # [ROWS, ROPE]

    table = block_table + row.to(tl.int64) * stride_table
    m = tl.full([ROWS], float("-inf"), tl.float32)
    l = tl.zeros([ROWS], tl.float32)  # noqa: E741
    acc = tl.zeros([ROWS, LATENT], tl.float32)
    ids = block_ids(table, start, end, row, BLOCK_SIZE, TILE)
    tiles = tl.maximum(end - start, 0) // TILE  # whole ones
    for step in tl.range(0, tiles, num_stages=STAGES):
        token = start + step * TILE
        latents = tl.load(tile_pointers(cache, ids, token, latent, stride_block, TOKEN, BLOCK_SIZE, TILE))
        ropes = tl.load(tile_pointers(cache, ids, token, rope, stride_block, TOKEN, BLOCK_SIZE, TILE))
        ids = block_ids(table, token + TILE, end, row, BLOCK_SIZE, TILE)
        scores = (times_keys(q_latent, latents) + times_keys(q_rope, ropes)) * scale  # [ROWS, TILE]
        m, l, acc = attend_latents(scores, latents, m, l, acc, q.dtype.element_ty)  # noqa: E741

    # A loop, though of one tile at most, so that it is copied to shared memory: registers would not hold it.
    for step in tl.range(tiles, tl.cdiv(tl.maximum(end - start, 0), TILE), num_stages=2):
        token = start + step * TILE
        visible = token + tl.arange(0, TILE) < end
        at = tile_pointers(cache, ids, token, latent, stride_block, TOKEN, BLOCK_SIZE, TILE)
        latents = tl.load(at, mask=visible[:, None], other=0.0)
        at = tile_pointers(cache, ids, token, rope, stride_block, TOKEN, BLOCK_SIZE, TILE)
        ropes = tl.load(at, mask=visible[:, None], other=0.0)
        scores = (times_keys(q_latent, latents) + times_keys(q_rope, ropes)) * scale
        scores = tl.where(visible[None, :], scores, float("-inf"))
        m, l, acc = attend_latents(scores, latents, m, l, acc, q.dtype.element_ty)  # noqa: E741

    # Only a sequence without tokens has no sum; its output is zeros.
    acc *= (1.0 / tl.where(l > 0, l, 1.0))[:, None]
    if ONE_PASS:
        at = out + row.to(tl.int64) * stride_out_row + heads * stride_out_head
    else:
        part = (row.to(tl.int64) * q_heads + heads) * tl.num_programs(2) + split
        at = out + part * LATENT
        tl.store(lse + part, m + tl.log2(l), mask=is_head)
    tl.store(at[:, None] + latent[None, :], rounded(acc, out.dtype.element_ty), mask=is_head[:, None])


@triton.jit
def attend_latents(scores, latents, m, l, acc, DTYPE: tl.constexpr):  # noqa: E741
    """Take one tile into account: its scores ``[ROWS, TILE]``, in base 2, and latents ``[TILE, LATENT]``.

    ``m`` is the highest score so far, ``l`` the sum of ``2^(score - m)`` and ``acc`` that times the latents.
    """
    m_new = tl.maximum(m, tl.max(scores, axis=1))
    weights = tl.exp2(scores - m_new[:, None])
    alpha = tl.exp2(m - m_new)
    l = l * alpha + tl.sum(weights, axis=1)  # noqa: E741
    return m_new, l, plus_values(acc * alpha[:, None], weights, latents, DTYPE)


@triton.jit
def latent_write_kernel(
    latent,  # [tokens, LATENT]
    rope,  # [tokens, ROPE]
    cache,  # [blocks, BLOCK_SIZE, LATENT + ROPE]
    slot_mapping,  # int64 [tokens]
    tokens,
    stride_latent,
    stride_rope,
    stride_block,
    TOKEN: tl.constexpr,
    LATENT: tl.constexpr,
    ROPE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Write a few tokens into their slots; a negative slot is passed over."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    slot = tl.load(slot_mapping + token, mask=token < tokens, other=-1)
    mask = (slot >= 0)[:, None]
    row = token.to(tl.int64)
    to = cache + (slot // BLOCK_SIZE * stride_block + slot % BLOCK_SIZE * TOKEN)[:, None]
    in_latent = tl.arange(0, LATENT)[None, :]
    in_rope = tl.arange(0, ROPE)[None, :]
    tl.store(
        to + in_latent, tl.load(latent + (row * stride_latent)[:, None] + in_latent, mask=mask), mask=mask
    )
    new = tl.load(rope + (row * stride_rope)[:, None] + in_rope, mask=mask)
    tl.store(to + (LATENT + in_rope), new, mask=mask)


def launches(
    q: Tensor,
    cache: LatentCache,
    block_table: Tensor,
    context_lens: Tensor,
    scale: float,
    plan: DecodePlan,
    out: Tensor,
) -> list[Launch]:
    """Return what is to be run, in order."""
    batch, q_heads, _ = q.shape
    rows = head_rows(q_heads, q.dtype)
    one_pass = plan.num_splits == 1
    partial, lse = (out, out) if one_pass else reduce.workspace(out, plan.num_splits)
    arguments = {
        **cache.place,
        "q": q,
        "block_table": block_table,
        "context_lens": context_lens,
        "out": partial,
        "lse": lse,
        "scale": scale * LOG2_E,
        "q_heads": q_heads,
        "stride_q_row": q.stride(0),
        "stride_q_head": q.stride(1),
        "stride_out_row": out.stride(0),
        "stride_out_head": out.stride(1),
        "stride_table": block_table.stride(0),
        "tokens_per_split": plan.tokens_per_split,
        "ROWS": rows,
        "TILE": plan.tile,
        "STAGES": plan.num_stages,
        "ONE_PASS": one_pass,
    }
    grid = (-(-q_heads // rows), batch, plan.num_splits)
    attention = Launch(latent_decode_kernel, grid, arguments, plan.num_warps, plan.num_stages)
    return (
        [attention] if one_pass else [attention, reduce.launch(partial, lse, context_lens, plan, None, out)]
    )


def write_launch(latent: Tensor, rope: Tensor, cache: LatentCache, slot_mapping: Tensor) -> Launch:
    """Return what writes new tokens."""
    arguments = {
        **cache.place,
        "latent": latent,
        "rope": rope,
        "slot_mapping": slot_mapping,
        "tokens": len(latent),
        "stride_latent": latent.stride(0),
        "stride_rope": rope.stride(0),
        "TOKENS": WRITE_TOKENS,
    }
    return Launch(latent_write_kernel, (-(-len(latent) // WRITE_TOKENS),), arguments)

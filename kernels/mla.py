"""Multi-head latent attention (MLA): decode over paged latents, in one pass or in splits.

MLA (DeepSeek-V2, 2024) caches one vector of ``LATENT`` numbers per token, from which keys and values of all
heads could be computed, and the ``ROPE`` numbers of the keys' rotated part. With the projections folded into
queries and output, decode is attention with one KV head. Its keys are the whole vectors, its values their
first ``LATENT`` numbers. So a tile is loaded once and multiplied twice, and a program handles as many query
heads as registers allow: 128 heads share a token in DeepSeek-V3.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from pagesim.kernels import reduce
from pagesim.kernels.attention import capability_of
from pagesim.kernels.cache import LatentCache
from pagesim.kernels.launch import Launch, Meta
from pagesim.kernels.tiles import (
    LEAST,
    LOG2_E,
    dot,
    load_block_ids,
    load_tile,
    rounded,
    softmax_step,
    split_bounds,
    store_result,
    tile_pointers,
)


@triton.jit
def mla_kernel(
    Q,  # [batch, q_heads, LATENT + ROPE]
    cache,  # [blocks, BLOCK_SIZE, LATENT + ROPE], by its strides
    block_table,  # int32 [batch, max_blocks]
    context_lens,  # int32 [batch]
    Out,  # [batch, q_heads, LATENT]; if SPLIT float32 [batch, q_heads, num_splits, LATENT]
    LSE,  # if SPLIT float32 [batch, q_heads, num_splits], base 2
    scale,  # of scores, log₂ e included
    q_heads,
    num_splits,
    min_split,  # tokens of a split at least
    stride_table,
    stride_block,
    Q_TOKEN: tl.constexpr,  # strides
    Q_HEAD: tl.constexpr,
    OUT_TOKEN: tl.constexpr,
    OUT_HEAD: tl.constexpr,
    TOKEN: tl.constexpr,
    LATENT: tl.constexpr,
    ROPE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,  # tokens a block
    ROWS: tl.constexpr,  # the shape class: about as many as there are query heads
    SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,  # query heads a program
    BLOCK_N: tl.constexpr,  # tokens a tile
):
    """Attend with BLOCK_M query heads of one sequence to one split of its tokens."""
    tiles = tl.cdiv(q_heads, BLOCK_M)  # neighbouring programs read the same tokens
    sequence = (tl.program_id(0) // tiles).to(tl.int64)
    split = tl.program_id(1)
    stop = tl.load(context_lens + sequence)
    start = 0
    if SPLIT:
        start, stop = split_bounds(0, stop, split, num_splits, min_split, BLOCK_N)

    head = tl.program_id(0) % tiles * BLOCK_M + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    is_head = head < q_heads
    latent = tl.arange(0, LATENT)
    rope = LATENT + tl.arange(0, ROPE)
    q_at = Q + (sequence * Q_TOKEN + head * Q_HEAD)[:, None]
    q_latent = tl.load(q_at + latent[None, :], mask=is_head[:, None], other=0.0)  # [BLOCK_M, LATENT]
    q_rope = tl.load(q_at + rope[None, :], mask=is_head[:, None], other=0.0)  # [BLOCK_M, ROPE]

    m = tl.full([BLOCK_M], LEAST, tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)  # noqa: E741
    acc = tl.zeros([BLOCK_M, LATENT], tl.float32)
    table = block_table + sequence * stride_table
    ids = load_block_ids(table, start, 0, stop, BLOCK_SIZE, BLOCK_N)
    tail = tl.maximum(start, stop // BLOCK_N * BLOCK_N)
    for PART in tl.static_range(2):  # whole tiles, then the last one
        low = start if PART == 0 else tail
        high = tail if PART == 0 else stop
        for at in tl.range(low, high, BLOCK_N):
            next_ids = load_block_ids(table, at + BLOCK_N, 0, stop, BLOCK_SIZE, BLOCK_N)
            is_token = at + tl.arange(0, BLOCK_N) < stop  # [BLOCK_N]
            latent_at = tile_pointers(cache, ids, at, latent, stride_block, TOKEN, BLOCK_SIZE, BLOCK_N)
            rope_at = tile_pointers(cache, ids, at, rope, stride_block, TOKEN, BLOCK_SIZE, BLOCK_N)
            V = load_tile(latent_at, is_token, latent < LATENT, PART == 1, False)  # [BLOCK_N, LATENT]
            R = load_tile(rope_at, is_token, rope >= LATENT, PART == 1, False)  # [BLOCK_N, ROPE]
            ids = next_ids
            S = dot(q_latent, tl.trans(V)) + dot(q_rope, tl.trans(R))  # [BLOCK_M, BLOCK_N]
            if PART == 1:
                S = tl.where(is_token[None, :], S, float("-inf"))
            P, alpha, m, l = softmax_step(S, scale, m, l)  # noqa: E741
            acc = acc * alpha[:, None] + dot(rounded(P, V.dtype), V)  # [BLOCK_M, LATENT]

    out_at = sequence * OUT_TOKEN + head * OUT_HEAD
    part = (sequence * q_heads + head) * num_splits + split
    store_result(acc, m, l, Out, LSE, out_at, part, latent, is_head, latent < LATENT, LATENT, SPLIT)


CONFIGS = [
    triton.Config({"BLOCK_M": m, "BLOCK_N": n}, num_warps=warps, num_stages=stages)
    for m, n, warps, stages in (
        (64, 64, 4, 2), (64, 64, 8, 2), (32, 32, 4, 2), (32, 64, 8, 2), (16, 32, 4, 3), (16, 16, 4, 2),
        (16, 16, 8, 2),
    )
]  # fmt: skip
"""Ordered by speed on an H100."""


def fits(config: triton.Config, arguments: Meta, capability: int) -> bool:
    """Return whether a configuration suits a shape's rows and fits into registers and shared memory."""
    m, n = config.kwargs["BLOCK_M"], config.kwargs["BLOCK_N"]
    itemsize, latent = arguments["Q"].dtype.itemsize, arguments["LATENT"]
    if itemsize == 4 or m == n == 16:  # float32 is multiplied from registers, without tensor cores
        return bool(m == n == 16 and config.num_warps == 2 * itemsize)
    registers = m * (latent + n) // (32 * config.num_warps)  # per thread, for acc and S
    # Before compute capability 9.0 a tile also passes through registers. On 10.0, Triton 3.6 needs more
    # shared memory for large tiles than exists. Narrow vectors need four warps.
    if m > max(16, arguments["ROWS"]) or not 40 < registers <= (160 if capability == 90 else 80):
        return False
    wide = latent + arguments["ROPE"]
    return bool((n * (config.num_stages - 1) + m) * wide * itemsize <= 144 * 1024)


def choose_config(arguments: Meta, capability: int) -> triton.Config:
    """Return the first configuration that fits the kernel's arguments on a GPU, or the last."""
    return next((each for each in CONFIGS if fits(each, arguments, capability)), CONFIGS[-1])


def launches(
    q: Tensor,
    cache: LatentCache,
    block_table: Tensor,
    context_lens: Tensor,
    out: Tensor,
    *,
    scale: float,
    num_splits: int,
    min_split: int = 0,
    config: triton.Config | None = None,
) -> list[Launch]:
    """Return the launches for the op's arguments, in order; all arguments are given and checked.

    ``min_split`` is the minimum number of tokens per split, and ``config`` is the kernel's configuration, or
    None to choose one.
    """
    batch, q_heads, _ = q.shape
    split = num_splits > 1
    partial, lse = reduce.workspace(out, num_splits) if split else (out, out)
    arguments: dict[str, Any] = {
        **cache.arguments,
        "Q": q,
        "block_table": block_table,
        "context_lens": context_lens,
        "Out": partial,
        "LSE": lse,
        "scale": float(scale) * LOG2_E,
        "q_heads": q_heads,
        "num_splits": num_splits,
        "min_split": min_split,
        "stride_table": block_table.stride(0),
        "Q_TOKEN": q.stride(0),
        "Q_HEAD": q.stride(1),
        "OUT_TOKEN": out.stride(0),
        "OUT_HEAD": out.stride(1),
        "ROWS": min(64, max(16, triton.next_power_of_2(q_heads))),
        "SPLIT": split,
    }

    def grid(meta: Meta) -> tuple[int, ...]:
        return (-(-q_heads // meta["BLOCK_M"]) * batch, num_splits)

    config = config or choose_config(arguments, capability_of(q.device))
    attention = Launch(mla_kernel, grid, arguments, config)
    return [attention, reduce.launch(partial, lse, out)] if split else [attention]

"""Paged attention: one kernel for decode, prefill and mixed batches, in one pass or in splits.

A sequence's queries are the last tokens of its context, and each sees itself and all tokens before it. One
query is a decode step, a few verify draft tokens, and many are a prompt or a chunk of one.

A program handles BLOCK_M rows of one sequence and one KV head. Rows are queries times the query heads that
share the KV head, so every loaded key serves all of them, and tensor cores get a matrix even for one query.
The program iterates over the visible tokens in tiles of BLOCK_N, with online softmax. With one split it
writes the result (v1 of vLLM's kernels: one pass). With several, each handles a part of the context and
writes a partial result, and ``reduce.py`` combines these (v2: split and reduce).

Decode is fast if many bytes are in flight:

- The next tile's block ids are loaded before this tile is computed. If they were loaded where they are used,
  they would be part of the address computation, and Triton would pipeline the loop half as deep.
- If a block is at least as large as a tile, a tile needs one scalar block id; else each token needs its own.
- Only tiles at an edge of the visible tokens are masked, in separate loops.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pagesim.kernels import reduce
from pagesim.kernels.cache import Cache
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
def find_sequence(query_starts, tile, batch, GROUP: tl.constexpr, BLOCK_M: tl.constexpr):
    """Return the sequence that a tile of rows belongs to, and its first tile, by binary search.

    Sequence b has the tiles from ``query_starts[b] · GROUP // BLOCK_M + b`` on, as many as it needs or one
    more.
    """
    low = 0
    high = batch
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(query_starts + middle) * GROUP // BLOCK_M + middle <= tile:
            low = middle
        else:
            high = middle
    return low, tl.load(query_starts + low) * GROUP // BLOCK_M + low


@triton.jit
def paged_attention_kernel(
    Q,  # [tokens, q_heads, HEAD_DIM]
    K_cache,  # [blocks, BLOCK_SIZE, kv_heads, HEAD_DIM], by its strides
    V_cache,  # as K_cache
    block_table,  # int32 [batch, max_blocks]
    context_lens,  # int32 [batch]
    query_starts,  # int32 [batch + 1]; not read if ONE_QUERY
    Out,  # as Q; if SPLIT float32 [tokens, q_heads, num_splits, HEAD_DIM]
    LSE,  # if SPLIT float32 [tokens, q_heads, num_splits], base 2
    k_scale,  # if FP8 float32 [kv_heads]
    v_scale,  # if FP8 float32 [kv_heads]
    sinks,  # if SINKS float32 [q_heads]
    scale,  # of scores, log₂ e included
    softcap,  # if CAPPED, log₂ e included
    window,  # if WINDOWED: tokens that a query sees
    batch,
    num_splits,
    min_split,  # tokens of a split at least
    stride_table,
    stride_k_block,
    stride_v_block,
    Q_TOKEN: tl.constexpr,  # strides
    Q_HEAD: tl.constexpr,
    OUT_TOKEN: tl.constexpr,
    OUT_HEAD: tl.constexpr,
    K_TOKEN: tl.constexpr,
    K_HEAD: tl.constexpr,
    V_TOKEN: tl.constexpr,
    V_HEAD: tl.constexpr,
    GROUP: tl.constexpr,  # query heads a KV head
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,  # the next power of two
    BLOCK_SIZE: tl.constexpr,  # tokens a block
    ROWS: tl.constexpr,  # the shape class: about as many rows as a sequence has
    ONE_QUERY: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    SINKS: tl.constexpr,
    FP8: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,  # rows a program
    BLOCK_N: tl.constexpr,  # tokens a tile
):
    """Attend with BLOCK_M rows of one sequence and KV head to one split of the tokens that they see."""
    # The last queries of a prompt see most: their programs begin first.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    if ONE_QUERY:
        TILES: tl.constexpr = (GROUP + BLOCK_M - 1) // BLOCK_M
        sequence = tile // TILES
        first_row = tile % TILES * BLOCK_M
        first_query = sequence
        queries = 1
    else:
        sequence, first_tile = find_sequence(query_starts, tile, batch, GROUP, BLOCK_M)
        first_row = (tile - first_tile) * BLOCK_M
        first_query = tl.load(query_starts + sequence)
        queries = tl.load(query_starts + sequence + 1) - first_query
        if first_row >= queries * GROUP:
            return
    context = tl.load(context_lens + sequence)

    rows = first_row + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    is_row = rows < queries * GROUP
    query = rows // GROUP
    head = kv_head * GROUP + rows % GROUP
    position = context - queries + query  # of each row's query among the tokens of the sequence
    first_position = context - queries + first_row // GROUP
    last_position = context - queries + tl.minimum((first_row + BLOCK_M - 1) // GROUP, queries - 1)

    # The tokens that any row sees: from begin to end. This split's: from start to stop.
    begin = 0
    if WINDOWED:
        begin = tl.maximum(first_position - window + 1, 0)
    end = last_position + 1
    start = begin // BLOCK_N * BLOCK_N
    stop = end
    if SPLIT:
        start, stop = split_bounds(start, end, split, num_splits, min_split, BLOCK_N)
    # Tiles from whole to tail are seen by all rows: those before lie on the window's edge, those after on
    # the diagonal or on the context's end.
    tail = tl.maximum(start, tl.minimum(stop, (first_position + 1) // BLOCK_N * BLOCK_N))
    whole = start
    if WINDOWED:
        whole = tl.cdiv(tl.maximum(last_position - window + 1, 0), BLOCK_N) * BLOCK_N
        whole = tl.minimum(tl.maximum(start, whole), tail)

    dim = tl.arange(0, PADDED_DIM)  # [D]
    is_dim = dim < HEAD_DIM
    token = (first_query + query).to(tl.int64)  # [BLOCK_M]
    q_at = Q + (token * Q_TOKEN + head * Q_HEAD)[:, None] + dim[None, :]
    q = tl.load(q_at, mask=is_row[:, None] & is_dim[None, :], other=0.0)  # [BLOCK_M, D]
    K_head = K_cache + kv_head.to(tl.int64) * K_HEAD
    V_head = V_cache + kv_head.to(tl.int64) * V_HEAD
    if FP8:
        scale *= tl.load(k_scale + kv_head)
    PADDED: tl.constexpr = HEAD_DIM != PADDED_DIM

    m = tl.full([BLOCK_M], LEAST, tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)  # noqa: E741
    acc = tl.zeros([BLOCK_M, PADDED_DIM], tl.float32)
    if SINKS:  # a score without a value, which the first split sees before all tokens
        sink = tl.load(sinks + head, mask=is_row, other=float("-inf")) * 1.4426950408889634
        has_sink = (sink > float("-inf")) & (split == 0)
        m = tl.where(has_sink, sink, m)
        l = tl.where(has_sink, 1.0, l)  # noqa: E741

    table = block_table + sequence.to(tl.int64) * stride_table
    ids = load_block_ids(table, start, begin, stop, BLOCK_SIZE, BLOCK_N)
    for PART in tl.static_range(0 if WINDOWED else 1, 3):
        low = start if PART == 0 else whole if PART == 1 else tail
        high = whole if PART == 0 else tail if PART == 1 else stop
        for at in tl.range(low, high, BLOCK_N):
            next_ids = load_block_ids(table, at + BLOCK_N, begin, stop, BLOCK_SIZE, BLOCK_N)
            tokens = at + tl.arange(0, BLOCK_N)  # [BLOCK_N]
            is_token = (tokens >= begin) & (tokens < stop)
            k_at = tile_pointers(K_head, ids, at, dim, stride_k_block, K_TOKEN, BLOCK_SIZE, BLOCK_N)
            v_at = tile_pointers(V_head, ids, at, dim, stride_v_block, V_TOKEN, BLOCK_SIZE, BLOCK_N)
            K = load_tile(k_at, is_token, is_dim, PART != 1, PADDED)  # [BLOCK_N, D]
            V = load_tile(v_at, is_token, is_dim, PART != 1, PADDED)  # [BLOCK_N, D]
            ids = next_ids
            S = dot(q, tl.trans(K.to(q.dtype)))  # [BLOCK_M, BLOCK_N]
            if CAPPED:  # tanh; of large numbers it is ±1
                S = softcap * (1.0 - 2.0 / (1.0 + tl.exp2(S * scale / softcap * 2.8853900817779268)))
            if PART != 1:
                seen = tokens[None, :] <= position[:, None]  # [BLOCK_M, BLOCK_N]
                if SPLIT:
                    seen = seen & (tokens < stop)[None, :]
                if WINDOWED:
                    seen = seen & (tokens[None, :] > position[:, None] - window)
                S = tl.where(seen, S, float("-inf"))
            P, alpha, m, l = softmax_step(S, 1.0 if CAPPED else scale, m, l)  # noqa: E741
            acc = acc * alpha[:, None] + dot(rounded(P, q.dtype), V.to(q.dtype))  # [BLOCK_M, D]

    if FP8:
        acc *= tl.load(v_scale + kv_head)
    out_at = token * OUT_TOKEN + head * OUT_HEAD
    part = (token * (tl.num_programs(1) * GROUP) + head) * num_splits + split
    store_result(acc, m, l, Out, LSE, out_at, part, dim, is_row, is_dim, HEAD_DIM, SPLIT)


CONFIGS = [
    triton.Config({"BLOCK_M": m, "BLOCK_N": n}, num_warps=warps, num_stages=stages)
    for m, n, warps, stages in (
        (128, 64, 8, 3), (128, 64, 8, 2), (128, 32, 8, 3), (64, 64, 4, 3), (64, 32, 8, 2), (32, 64, 4, 3),
        (16, 64, 2, 3), (16, 32, 2, 3), (16, 32, 4, 2), (16, 16, 4, 3), (16, 16, 4, 2), (16, 16, 8, 2),
    )
]  # fmt: skip
"""Ordered by speed on an H100: for prompts, for decode, and for vectors too wide for all others."""


def fits(config: triton.Config, arguments: Meta, capability: int) -> bool:
    """Return whether a configuration suits a shape's rows and fits into registers and shared memory."""
    m, n, dim = config.kwargs["BLOCK_M"], config.kwargs["BLOCK_N"], arguments["PADDED_DIM"]
    itemsize, kv_itemsize = arguments["Q"].dtype.itemsize, arguments["K_cache"].dtype.itemsize
    threads = 32 * config.num_warps
    if itemsize == 4:  # multiplied from registers, without tensor cores
        return bool(m == n == 16 and threads == 256)
    if m > max(16, arguments["ROWS"]) or (m < min(arguments["ROWS"], 64) and dim <= 256):
        return False
    if dim < 128 and (m == 128 or (m == 64 and threads == 256)):  # narrow vectors need few warps
        return False
    tile = n * dim * kv_itemsize  # bytes of keys
    if not 16 * threads <= tile or (m < 64 and tile > 128 * threads):  # that pass through registers
        return False
    if m == 16 and n > 16 and dim >= 256:  # wide vectors need short tiles
        return False
    registers = m * (dim + n) // threads  # per thread, for acc and S
    if capability < 90:
        registers += n * dim // threads  # K and V pass through registers on their way to the tensor cores
        if arguments["BLOCK_SIZE"] < n:  # one address of two registers per 16 bytes
            registers += 4 * tile // 16 // threads
    shared = 2 * tile * (config.num_stages - 1) + m * dim * itemsize
    return bool(registers <= (160 if capability >= 90 else 112) and shared <= 140 * 1024)


def choose_config(arguments: Meta, capability: int) -> triton.Config:
    """Return the first configuration that fits the kernel's arguments on a GPU; the last fits always."""
    return next((each for each in CONFIGS if fits(each, arguments, capability)), CONFIGS[-1])


def launches(
    q: Tensor,
    cache: Cache,
    block_table: Tensor,
    context_lens: Tensor,
    query_starts: Tensor | None,
    out: Tensor,
    *,
    max_query_len: int,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
    num_splits: int,
    min_split: int = 0,
    config: triton.Config | None = None,
) -> list[Launch]:
    """Return the launches for the op's arguments, in order; all arguments are given and checked.

    ``min_split`` is the minimum number of tokens per split, and ``config`` is the kernel's configuration, or
    None to choose one.
    """
    (tokens, q_heads, _), kv_heads = q.shape, cache.sizes.kv_heads
    batch, group, split = len(context_lens), q_heads // kv_heads, num_splits > 1
    partial, lse = reduce.workspace(q, num_splits) if split else (out, out)
    arguments: dict[str, Any] = {
        **cache.arguments,
        "Q": q,
        "block_table": block_table,
        "context_lens": context_lens,
        "query_starts": context_lens if query_starts is None else query_starts,
        "Out": partial,
        "LSE": lse,
        "sinks": q if sinks is None else sinks,
        "scale": float(scale) * LOG2_E,
        "softcap": (softcap or 0.0) * LOG2_E,
        "window": window or 0,
        "batch": batch,
        "num_splits": num_splits,
        "min_split": min_split,
        "stride_table": block_table.stride(0),
        "Q_TOKEN": q.stride(0),
        "Q_HEAD": q.stride(1),
        "OUT_TOKEN": out.stride(0),
        "OUT_HEAD": out.stride(1),
        "GROUP": group,
        "ROWS": min(128, max(16, triton.next_power_of_2(max_query_len * group))),
        "ONE_QUERY": query_starts is None,
        "WINDOWED": window is not None,
        "CAPPED": softcap is not None,
        "SINKS": sinks is not None,
        "SPLIT": split,
    }

    def grid(meta: Meta) -> tuple[int, ...]:
        rows = meta["BLOCK_M"]
        tiles = batch * -(-group // rows) if query_starts is None else tokens * group // rows + batch
        return (tiles if batch and tokens else 0, kv_heads, num_splits)

    config = config or choose_config(arguments, capability_of(q.device))
    attention = Launch(paged_attention_kernel, grid, arguments, config)
    return [attention, reduce.launch(partial, lse, out)] if split else [attention]


def choose_splits(programs: int, max_context: int, device: torch.device) -> int:
    """Return the number of splits per context that keeps a GPU busy; 1 if its programs suffice.

    Two programs run on a multiprocessor at once, and a split has at least 64 tokens. On an H100, one sequence
    of 1,024 tokens takes 9.3 µs in 16 splits and 13.1 µs in four.

    Args:
        programs: number of programs per split.
        max_context: tokens of the longest possible context.
        device: device of the kernel; on a CPU, the 132 multiprocessors of an H200 are assumed.
    """
    return max(1, min(max_context // 64, 2 * multiprocessors(device) // max(1, programs), 128))


def capability_of(device: torch.device) -> int:
    """Return a device's compute capability times ten; 90 (that of an H200) on a CPU."""
    if device.type != "cuda":
        return 90
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def multiprocessors(device: torch.device) -> int:
    """Return a device's number of multiprocessors; 132 (that of an H200) on a CPU."""
    if device.type != "cuda":
        return 132
    return int(torch.cuda.get_device_properties(device).multi_processor_count)

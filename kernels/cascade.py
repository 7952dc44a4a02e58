"""Shared-prefix (cascade) attention: two decodes and a merge, so that blocks that are shared are read once.

A group of sequences that begin with the same blocks is, for these blocks, one sequence with the query heads
of all of them: more rows of the same matrix, for which tensor cores have room. So the first decode takes a
group as a sequence, the second takes what each sequence has of its own, and the merge weighs the partial
results of both by their sums (log-sum-exp; Juravsky et al., Hydragen, 2024).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import triton
import triton.language as tl
from torch import Tensor

from pagesim.kernels import decode, reduce
from pagesim.kernels.cache import Cache
from pagesim.kernels.launch import Launch
from pagesim.kernels.planner import DecodePlan
from pagesim.kernels.reduce import SPLIT_TILE, add_parts
from pagesim.kernels.sharing import SharedPrefixes
from pagesim.kernels.tiles import rounded, split_tokens


@triton.jit
def cascade_merge_kernel(
    shared_partial,  # float32 [groups, kv_heads, members, GROUP, shared_splits, HEAD_DIM]
    shared_lse,  # float32 [groups, kv_heads, members, GROUP, shared_splits], base 2
    own_partial,  # float32 [batch, q_heads, own_splits, HEAD_DIM]
    own_lse,  # float32 [batch, q_heads, own_splits], base 2
    shared_lens,  # int32 [groups]
    own_lens,  # int32 [batch]
    places,  # int32 [batch]: group * members + member; -1 of a sequence that shares nothing
    out,  # [batch, q_heads, HEAD_DIM]
    stride_out_row,
    stride_out_head,
    members,
    shared_splits,
    shared_tokens_per_split,
    own_splits,
    own_tokens_per_split,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    SHARED_TILE: tl.constexpr,
    OWN_TILE: tl.constexpr,
    SPLIT_TILE: tl.constexpr,
):
    """Merge what one query head of one sequence got from blocks that are shared and from its own."""
    head = tl.program_id(0)
    row = tl.program_id(1)
    q_heads = tl.num_programs(0)
    dim = tl.arange(0, PADDED_DIM)
    m = tl.full([], float("-inf"), tl.float32)
    l = tl.zeros([], tl.float32)  # noqa: E741
    acc = tl.zeros([PADDED_DIM], tl.float32)

    place = tl.load(places + row)
    group = tl.maximum(place, 0) // members
    member = tl.maximum(place, 0) % members
    length = tl.where(place >= 0, tl.load(shared_lens + group), 0)
    filled = tl.cdiv(length, split_tokens(length, shared_tokens_per_split, shared_splits, SHARED_TILE))
    of_group = (head // GROUP * members + member) * GROUP + head % GROUP
    first = (group.to(tl.int64) * q_heads * members + of_group) * shared_splits
    m, l, acc = add_parts(  # noqa: E741
        shared_partial, shared_lse, first, filled, dim, m, l, acc, HEAD_DIM, SPLIT_TILE
    )

    length = tl.load(own_lens + row)
    filled = tl.cdiv(length, split_tokens(length, own_tokens_per_split, own_splits, OWN_TILE))
    first = (row.to(tl.int64) * q_heads + head) * own_splits
    m, l, acc = add_parts(own_partial, own_lse, first, filled, dim, m, l, acc, HEAD_DIM, SPLIT_TILE)  # noqa: E741

    acc /= tl.where(l > 0, l, 1.0)  # only a sequence without tokens has no sum
    at = out + row.to(tl.int64) * stride_out_row + head * stride_out_head + dim
    tl.store(at, rounded(acc, out.dtype.element_ty), mask=dim < HEAD_DIM)


def launches(
    q: Tensor,
    cache: Cache,
    prefixes: SharedPrefixes,
    scale: float | None,
    plans: tuple[DecodePlan, DecodePlan],
    out: Tensor,
) -> Iterator[Launch]:
    """Yield what is to be run, in order."""
    batch, q_heads, head_dim = q.shape
    kv_heads = cache.sizes.kv_heads
    of_groups = prefixes.gather_queries(q, kv_heads)  # [groups, kv_heads * members * GROUP, D]
    shared, own = plans
    halves = (
        (of_groups, prefixes.shared_tables, prefixes.shared_lens, shared),
        (q, prefixes.own_tables, prefixes.own_lens, own),
    )
    parts = []
    for queries, tables, lens, plan in halves:
        partial, lse = reduce.workspace(queries, plan.num_splits)
        grid = replace(plan, row_splits=None)  # the merge counts on equal splits
        attention = decode.launches(queries, cache, tables, lens, scale, grid, queries)[0]
        written = {"out": partial, "lse": lse, "ONE_PASS": False}
        yield replace(attention, arguments={**attention.arguments, **written})
        parts += [partial, lse]
    arguments = {
        **dict(zip(("shared_partial", "shared_lse", "own_partial", "own_lse"), parts, strict=True)),
        "shared_lens": prefixes.shared_lens,
        "own_lens": prefixes.own_lens,
        "places": prefixes.places,
        "out": out,
        "stride_out_row": out.stride(0),
        "stride_out_head": out.stride(1),
        "members": prefixes.members.shape[1],
        "shared_splits": shared.num_splits,
        "shared_tokens_per_split": shared.tokens_per_split,
        "own_splits": own.num_splits,
        "own_tokens_per_split": own.tokens_per_split,
        "GROUP": q_heads // kv_heads,
        "HEAD_DIM": head_dim,
        "PADDED_DIM": triton.next_power_of_2(head_dim),
        "SHARED_TILE": shared.tile,
        "OWN_TILE": own.tile,
        "SPLIT_TILE": SPLIT_TILE,
    }
    yield Launch(cascade_merge_kernel, (q_heads, batch), arguments)

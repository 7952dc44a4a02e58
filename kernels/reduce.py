"""The second half of split-KV decoding: what the splits of a sequence give is put together."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pagesim.kernels.launch import Launch
from pagesim.kernels.planner import DecodePlan
from pagesim.kernels.tiles import LEAST, first_seen, rounded, split_tokens
from pagesim.kernels.variant import PLAIN, Variant
from pagesim.kernels.work_list import WorkList

SPLIT_TILE = 16
"""Partial results that are in flight at once."""


@triton.jit
def add_parts(
    partial,
    lse,
    first,
    filled,
    dim,
    m,
    l,  # noqa: E741
    acc,
    HEAD_DIM: tl.constexpr,
    SPLIT_TILE: tl.constexpr,
):
    """Add up the ``filled`` partial results from ``first`` on, weighed by their sums.

    ``m`` is the highest logarithm of a sum so far, ``l`` the sum of ``2^(lse - m)`` and ``acc`` that times
    the partial results, ``[PADDED_DIM]``.
    """
    for start in range(0, filled, SPLIT_TILE):
        split = start + tl.arange(0, SPLIT_TILE)
        is_filled = split < filled
        sums = tl.load(lse + first + split, mask=is_filled, other=float("-inf"))
        parts = tl.load(  # [SPLIT_TILE, PADDED_DIM]
            partial + (first + split)[:, None] * HEAD_DIM + dim[None, :],
            mask=is_filled[:, None] & (dim < HEAD_DIM)[None, :],
            other=0.0,
        )
        m_new = tl.maximum(m, tl.max(sums, axis=0))
        weights = tl.exp2(sums - m_new)
        alpha = tl.exp2(m - m_new)
        l = l * alpha + tl.sum(weights, axis=0)  # noqa: E741
        acc = acc * alpha + tl.sum(parts * weights[:, None], axis=0)
        m = m_new
    return m, l, acc


@triton.jit
def reduce_kernel(
    partial,  # float32 [batch, QUERIES, q_heads, splits, HEAD_DIM]
    lse,  # float32 [batch, QUERIES, q_heads, splits], base 2
    context_lens,  # int32 [batch]
    row_splits,  # LISTED: int32 [batch]
    out,  # [batch, QUERIES, q_heads, HEAD_DIM]
    window,
    stride_out_row,
    stride_out_query,
    stride_out_head,
    most_splits,  # of a sequence
    tokens_per_split,
    QUERIES: tl.constexpr,
    WINDOWED: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    TILE: tl.constexpr,
    SPLIT_TILE: tl.constexpr,
    LISTED: tl.constexpr,
):
    """Weigh the partial results of one query head of one query by their sums, and add them up."""
    head = tl.program_id(0)  # of all queries of the sequence
    row = tl.program_id(1)
    # Splits that hold no token have written nothing.
    length = tl.load(context_lens + row)
    splits = tl.load(row_splits + row) if LISTED else most_splits
    length -= first_seen(length, window, QUERIES, WINDOWED) // TILE * TILE
    filled = tl.cdiv(length, split_tokens(length, tokens_per_split, splits, TILE))
    first = (row.to(tl.int64) * tl.num_programs(0) + head) * most_splits
    dim = tl.arange(0, PADDED_DIM)
    # Tensors, not constants: a loop of another function carries them on. A query may see no token of any of
    # the first splits: -∞ less -∞ would be a NaN.
    m = tl.full([], LEAST, tl.float32)
    l = tl.zeros([], tl.float32)  # noqa: E741
    acc = tl.zeros([PADDED_DIM], tl.float32)
    m, l, acc = add_parts(partial, lse, first, filled, dim, m, l, acc, HEAD_DIM, SPLIT_TILE)  # noqa: E741
    acc /= tl.where(l > 0, l, 1.0)
    q_heads = tl.num_programs(0) // QUERIES
    at = out + row.to(tl.int64) * stride_out_row + dim
    if QUERIES == 1:
        at += head * stride_out_head
    else:
        at += head // q_heads * stride_out_query + head % q_heads * stride_out_head
    tl.store(at, rounded(acc, out.dtype.element_ty), mask=dim < HEAD_DIM)


def workspace(q: Tensor, splits: int) -> tuple[Tensor, Tensor]:
    """Return memory for partial results and the logarithms of their sums."""
    *heads, head_dim = q.shape
    partial = q.new_empty((*heads, splits, head_dim), dtype=torch.float32)
    return partial, q.new_empty((*heads, splits), dtype=torch.float32)


def launch(
    partial: Tensor,
    lse: Tensor,
    context_lens: Tensor,
    plan: DecodePlan,
    listed: WorkList | None,
    out: Tensor,
    variant: Variant = PLAIN,
) -> Launch:
    """Return the reduction of what a decode kernel has written by this plan and its work list."""
    batch, queries = len(out), out.shape[1] if out.dim() == 4 else 1
    q_heads, head_dim = out.shape[-2:]
    arguments = {
        "partial": partial,
        "lse": lse,
        "context_lens": context_lens,
        "row_splits": context_lens if listed is None else listed.row_splits,
        "out": out,
        "window": variant.window or 0,
        "stride_out_row": out.stride(0),
        "stride_out_query": out.stride(-3),
        "stride_out_head": out.stride(-2),
        "most_splits": plan.num_splits,
        "tokens_per_split": plan.tokens_per_split,
        "QUERIES": queries,
        "WINDOWED": variant.window is not None,
        "HEAD_DIM": head_dim,
        "PADDED_DIM": triton.next_power_of_2(head_dim),
        "TILE": plan.tile,
        "SPLIT_TILE": SPLIT_TILE,
        "LISTED": listed is not None,
    }
    return Launch(reduce_kernel, (queries * q_heads, batch), arguments)

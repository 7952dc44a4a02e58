"""The second half of split attention: combines the partial results of a row's splits."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pagesim.kernels.launch import Launch
from pagesim.kernels.tiles import LEAST, rounded

SPLITS = 16
"""Number of partial results in flight at once."""


@triton.jit
def reduce_kernel(
    partial,  # float32 [tokens, heads, num_splits, DIM]
    LSE,  # float32 [tokens, heads, num_splits], base 2
    Out,  # [tokens, heads, DIM]
    num_splits,
    OUT_TOKEN: tl.constexpr,
    OUT_HEAD: tl.constexpr,
    DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Weigh the partial results of one head of one token by their sums, and add them up.

    A split that holds no token of the row has minus infinity for the logarithm of its sum; its partial
    result is not read.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    first = (token * tl.num_programs(1) + head) * num_splits
    dim = tl.arange(0, PADDED_DIM)  # [D]
    is_dim = dim < DIM
    m = tl.full([], LEAST, tl.float32)
    l = tl.zeros([], tl.float32)  # noqa: E741
    acc = tl.zeros([PADDED_DIM], tl.float32)
    for start in range(0, num_splits, SPLITS):
        split = start + tl.arange(0, SPLITS)  # [SPLITS]
        lse = tl.load(LSE + first + split, mask=split < num_splits, other=float("-inf"))
        holds = lse > float("-inf")
        at = partial + (first + split)[:, None] * DIM + dim[None, :]
        parts = tl.load(at, mask=holds[:, None] & is_dim[None, :], other=0.0)  # [SPLITS, D]
        m_new = tl.maximum(m, tl.max(lse, axis=0))
        weights = tl.exp2(lse - m_new)  # [SPLITS]
        alpha = tl.exp2(m - m_new)
        l = l * alpha + tl.sum(weights, axis=0)  # noqa: E741
        acc = acc * alpha + tl.sum(parts * weights[:, None], axis=0)
        m = m_new
    acc /= tl.where(l > 0, l, 1.0)
    tl.store(Out + token * OUT_TOKEN + head * OUT_HEAD + dim, rounded(acc, Out.dtype.element_ty), mask=is_dim)


def workspace(q: Tensor, num_splits: int) -> tuple[Tensor, Tensor]:
    """Return memory for the partial results of ``[tokens, heads, D]`` and the logarithms of their sums."""
    tokens, heads, dim = q.shape
    lse = q.new_empty((tokens, heads, num_splits), dtype=torch.float32)
    return q.new_empty((tokens, heads, num_splits, dim), dtype=torch.float32), lse


def launch(partial: Tensor, lse: Tensor, out: Tensor) -> Launch:
    """Return the reduction of partial results into ``out``, ``[tokens, heads, D]``."""
    tokens, heads, dim = out.shape
    arguments = {
        "partial": partial,
        "LSE": lse,
        "Out": out,
        "num_splits": lse.shape[2],
        "OUT_TOKEN": out.stride(0),
        "OUT_HEAD": out.stride(1),
        "DIM": dim,
        "PADDED_DIM": triton.next_power_of_2(dim),
        "SPLITS": SPLITS,
    }
    return Launch(reduce_kernel, lambda _: (tokens, heads), arguments)

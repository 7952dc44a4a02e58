"""Random problems for paged attention, in which everything that must not be read is poisoned.

Blocks lie in random order, slots without a token hold NaN, and table entries that no context reaches name
no block. So whatever reads too much gives NaN, or fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from pagesim.kernels import Cache, Sizes, paged_attention, reference


@dataclass(frozen=True)
class Case:
    """The arguments of ``paged_attention``."""

    q: Tensor
    key_cache: Tensor
    value_cache: Tensor
    block_table: Tensor
    context_lens: Tensor
    query_starts: Tensor | None = None
    layout: str = "NHD"
    k_scale: float | Tensor = 1.0
    v_scale: float | Tensor = 1.0
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None

    @property
    def variant(self) -> dict[str, Any]:
        return {"window": self.window, "softcap": self.softcap, "sinks": self.sinks}

    @property
    def cache(self) -> Cache:
        pair = (self.key_cache, self.value_cache)
        return Cache(*pair, layout=self.layout, k_scale=self.k_scale, v_scale=self.v_scale)

    @property
    def batch(self) -> tuple[Any, ...]:
        return (self.block_table, self.context_lens, self.query_starts)

    def run(self, **options: Any) -> Tensor:
        """Return what the op gives, written over NaN."""
        out = torch.full_like(self.q, float("nan"))
        return paged_attention(self.q, self.cache, *self.batch, **self.variant, out=out, **options)

    def refer(self, compute_dtype: torch.dtype = torch.float64) -> Tensor:
        """Return what the reference gives if it computes in a type, as float64."""
        q = self.q.double() if compute_dtype == torch.float64 else self.q
        options = {"scale": 1 / sqrt(q.shape[-1]), "compute_dtype": compute_dtype}
        return reference.paged_attention(q, self.cache, *self.batch, **self.variant, **options).double()

    def to(self, device: torch.device | str) -> Case:
        """Return the same problem on another device."""
        moved = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **moved)


def largest_error(output: Tensor, exact: Tensor) -> float:
    """Return max|error| / max|exact|; NaN counts as infinite. Where all is zero, so must the output be."""
    error = (output.double() - exact).abs().nan_to_num(nan=float("inf")).max().item()
    return float(error / exact.abs().max().clamp_min(torch.finfo(torch.float64).tiny).item())


def make_case(
    context_lens: Sequence[int],
    *,
    query_lens: Sequence[int] | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: bool = False,
    kv_heads: int = 2,
    group: int = 1,
    head_dim: int = 64,
    block_size: int = 16,
    dtype: torch.dtype = torch.float16,
    kv_dtype: torch.dtype | None = None,
    head_scales: bool = False,
    layout: str = "NHD",
    seed: int = 0,
) -> Case:
    """Return a random problem, on the CPU.

    Args:
        context_lens: tokens of each sequence.
        query_lens: queries of each sequence; None for one a sequence.
        window: tokens that a query sees; what no query sees is poison, too.
        softcap: of scores.
        sinks: whether there is a random sink for each query head, none for the last.
        kv_heads: KV heads.
        group: query heads a KV head.
        head_dim: elements of a vector.
        block_size: tokens a block.
        dtype: of the queries.
        kv_dtype: of the caches; None for that of the queries. FP8 comes with scales.
        head_scales: whether there is a scale for each KV head.
        layout: of the caches.
        seed: of the random numbers.
    """
    random = torch.Generator().manual_seed(seed)
    batch, kv_dtype = len(context_lens), kv_dtype or dtype
    used = [-(-length // block_size) for length in context_lens]
    blocks = sum(used) + 3
    order = torch.tensor_split(torch.randperm(blocks, generator=random), torch.tensor(used).cumsum(0))
    table = torch.full((batch, max(1, *used)), -(2**31), dtype=torch.int32)
    keys, values = (torch.full(Sizes(blocks, block_size, kv_heads, head_dim), float("nan")) for _ in range(2))
    for row, (length, mine) in enumerate(zip(context_lens, order, strict=False)):
        count = query_lens[row] if query_lens else 1
        first = 0 if window is None else max(length - count - window + 1, 0)
        table[row, first // block_size : len(mine)] = mine[first // block_size :]
        slot = (mine[:, None] * block_size + torch.arange(block_size)).flatten()[:length]
        for plain in (keys, values):
            drawn = torch.randn(length, kv_heads, head_dim, generator=random)
            plain.flatten(0, 1)[slot[first:]] = drawn[first:]
    k_scale: float | Tensor = 1.0
    v_scale: float | Tensor = 1.0
    if kv_dtype == torch.float8_e4m3fn:
        k_scale, v_scale = 0.5, 1.75
        if head_scales:
            k_scale, v_scale = (0.5 + torch.rand(kv_heads, generator=random) for _ in range(2))
    rows = batch if query_lens is None else sum(query_lens)
    both = (each.transpose(1, 2).contiguous() if layout == "HND" else each for each in (keys, values))
    drawn_sinks = torch.randn(kv_heads * group, generator=random) * 2
    drawn_sinks[-1] = -torch.inf
    return Case(
        torch.randn(rows, kv_heads * group, head_dim, generator=random).to(dtype),
        *(each.to(kv_dtype) for each in both),
        table,
        torch.tensor(context_lens, dtype=torch.int32),
        None if query_lens is None else torch.tensor([0, *query_lens]).cumsum(0).int(),
        layout,
        k_scale,
        v_scale,
        window,
        softcap,
        drawn_sinks if sinks else None,
    )

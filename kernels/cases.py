"""Random problems for the attention ops, in which everything that must not be read is poisoned.

Blocks lie in random order, slots without a token hold NaN, and table entries that no context reaches name
no block. So whatever reads too much gives NaN, or fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from pagesim.kernels import api, reference
from pagesim.kernels.layouts import NHD, Layout, Sizes
from pagesim.kernels.planner import first_seen
from pagesim.kernels.variant import PLAIN, Variant


@dataclass(frozen=True)
class Case:
    """One problem: the arguments of ``decode_attention``, or of ``prefill_attention``.

    Args:
        q: ``[batch or tokens, q_heads, D]``, or ``[batch, queries, q_heads, D]`` for decoding several.
        key_cache: in ``layout``.
        value_cache: in ``layout``.
        block_table: int32 ``[batch, max_blocks]``.
        context_lens: int32 ``[batch]``.
        query_starts: int32 ``[batch + 1]``, or None for decoding.
        layout: of the caches.
        k_scale: of FP8 or int8 keys.
        v_scale: of FP8 or int8 values.
        variant: window, soft cap and sinks.
    """

    q: Tensor
    key_cache: Tensor
    value_cache: Tensor
    block_table: Tensor
    context_lens: Tensor
    query_starts: Tensor | None = None
    layout: Layout = NHD
    k_scale: float | Tensor = 1.0
    v_scale: float | Tensor = 1.0
    variant: Variant = PLAIN

    def run(self, **options: Any) -> Tensor:
        """Return what the op gives, written over NaN."""
        op: Callable[..., Tensor] = api.prefill_attention if self.is_prefill else api.decode_attention
        out = torch.full_like(self.q, float("nan"))
        return op(*self.arguments, variant=self.variant, out=out, **options)

    def refer(self, compute_dtype: torch.dtype = torch.float64) -> Tensor:
        """Return what the reference gives if it computes in a type, as float64."""
        op: Callable[..., Tensor] = (
            reference.prefill_attention if self.is_prefill else reference.decode_attention
        )
        q, _, *batch = self.arguments
        if compute_dtype == torch.float64:
            q = q.double()
        options = {**self.cache.as_stored, **self.variant.as_given, "scale": 1 / sqrt(self.q.shape[-1])}
        pair = (self.key_cache, self.value_cache)
        return op(q, *pair, *batch, **options, compute_dtype=compute_dtype).double()

    def to(self, device: torch.device | str) -> Case:
        """Return the same problem on another device."""
        moved: dict[str, Any] = {
            name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        if self.variant.sinks is not None:
            moved["variant"] = replace(self.variant, sinks=self.variant.sinks.to(device))
        return replace(self, **moved)

    @property
    def is_prefill(self) -> bool:
        """Whether there are several queries a sequence."""
        return self.query_starts is not None

    @property
    def cache(self) -> api.Cache:
        """The cache, checked."""
        pair = (self.key_cache, self.value_cache)
        return api.Cache(*pair, layout=self.layout, k_scale=self.k_scale, v_scale=self.v_scale)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What the op takes by position."""
        batch = (self.q, self.cache, self.block_table, self.context_lens)
        return batch if self.query_starts is None else (*batch, self.query_starts)


def largest_error(output: Tensor, exact: Tensor) -> float:
    """Return max|error| / max|exact|.

    NaN counts as infinite. Where all is exactly zero, so must the output be.
    """
    error = (output.double() - exact).abs().nan_to_num(nan=float("inf")).max().item()
    return float(error / exact.abs().max().clamp_min(torch.finfo(torch.float64).tiny).item())


def make_case(
    context_lens: Sequence[int],
    *,
    query_lens: Sequence[int] | None = None,
    queries: int | None = None,
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
    token_scales: bool = False,
    layout: Layout = NHD,
    seed: int = 0,
) -> Case:
    """Return a random problem, on the CPU.

    Args:
        context_lens: tokens of each sequence.
        query_lens: queries of each sequence; None for decoding.
        queries: of every sequence, for decoding several.
        window: of the variant; what no query sees is poison, too.
        softcap: of the variant.
        sinks: whether there is a random sink for each query head, none for the last.
        kv_heads: KV heads.
        group: query heads a KV head.
        head_dim: elements of a vector.
        block_size: tokens a block.
        dtype: of the queries.
        kv_dtype: of the caches; None for that of the queries. FP8 comes with scales.
        head_scales: whether there is a scale for each KV head.
        token_scales: whether there is one for each token and head; a slot without a token holds NaN in it.
        layout: of the caches.
        seed: of the random numbers.
    """
    random = torch.Generator().manual_seed(seed)
    batch, kv_dtype = len(context_lens), kv_dtype or dtype
    used = [-(-length // block_size) for length in context_lens]
    blocks = sum(used) + 3
    order = torch.tensor_split(torch.randperm(blocks, generator=random), torch.tensor(used).cumsum(0))
    table = torch.full((batch, max(1, *used)), -(2**31), dtype=torch.int32)
    sizes = Sizes(blocks, block_size, kv_heads, head_dim)
    keys, values = (torch.full(sizes, float("nan")) for _ in range(2))
    for row, (length, mine) in enumerate(zip(context_lens, order, strict=False)):
        first = first_seen(length, (query_lens[row] if query_lens else queries) or 1, window)
        table[row, first // block_size : len(mine)] = mine[first // block_size :]
        slot = (mine[:, None] * block_size + torch.arange(block_size)).flatten()[:length]
        for plain in (keys, values):
            drawn = torch.randn(length, kv_heads, head_dim, generator=random)
            plain.flatten(0, 1)[slot[first:]] = drawn[first:]
    k_scale: float | Tensor = 1.0
    v_scale: float | Tensor = 1.0
    if token_scales:
        most = api.TOKEN_MAX[kv_dtype]
        empty = keys[..., 0].isnan().transpose(1, 2).contiguous()  # [blocks, kv_heads, block_size]
        keys, values = ((plain.clamp(-4, 4) * (most / 4)).nan_to_num(nan=-most) for plain in (keys, values))
        if kv_dtype == torch.int8:
            keys, values = keys.round(), values.round()
        k_scale, v_scale = (
            torch.where(empty, float("nan"), (0.5 + torch.rand(empty.shape, generator=random)) * 4 / most)
            for _ in range(2)
        )
    elif kv_dtype == torch.float8_e4m3fn:
        k_scale, v_scale = 0.5, 1.75
        if head_scales:
            k_scale, v_scale = (0.5 + torch.rand(kv_heads, generator=random) for _ in range(2))
    shape = (batch,) if queries is None else (batch, queries)
    shape = shape if query_lens is None else (sum(query_lens),)
    starts = None if query_lens is None else torch.tensor([0, *query_lens]).cumsum(0).int()
    return Case(
        torch.randn(*shape, kv_heads * group, head_dim, generator=random).to(dtype),
        layout.key.from_plain(keys.to(kv_dtype)),
        layout.value.from_plain(values.to(kv_dtype)),
        table,
        torch.tensor(context_lens, dtype=torch.int32),
        starts,
        layout,
        k_scale,
        v_scale,
        Variant(window, softcap, _sinks(kv_heads * group, random) if sinks else None),
    )


def _sinks(q_heads: int, random: torch.Generator) -> Tensor:
    drawn = torch.randn(q_heads, generator=random) * 2
    drawn[-1] = -torch.inf
    return drawn

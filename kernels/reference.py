"""What every op computes, in vectorised torch: the oracle of the tests and the way of every op on a CPU.

The functions take what the ops of ``pagesim.kernels.api`` take and check nothing. They run on any device,
read no slot that holds no token, and compute in float32, in float64 where the queries are float64 (so that
upcast inputs give the exact answer), or in ``compute_dtype``, rounding after every step as eager code in
that type does.

The same for one query head in plain Python stands in ``plain.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import torch
from torch import Tensor

from pagesim.kernels.layouts import NHD, Layout, Storage
from pagesim.kernels.planner import first_seen

Scale = float | Tensor
"""What a stored FP8 number is multiplied by: one factor, or one a KV head as float32 ``[kv_heads]``.

Of int8 or FP8 with a scale a token and head it is float32 ``[blocks, kv_heads, block_size]``."""

FP8_MAX = 448.0
"""The largest number in e4m3."""

LEAST_SCALE = 2.0**-126
"""The least scale of a token and head, float32's least normal number; zeros have it."""


def attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    compute_dtype: torch.dtype | None = None,
    *,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Return the causal attention of a sequence's last T tokens over its L tokens.

    Args:
        q: ``[T, q_heads, D]``; query head h reads KV head ``h // (q_heads // kv_heads)``.
        keys: ``[L, kv_heads, D]``; with L < T the first queries are of no token and give zeros.
        values: ``[L, kv_heads, D]``.
        scale: what a dot product is multiplied by.
        compute_dtype: the type of every intermediate.
        window: how many tokens a query sees, its own included; None for all so far.
        softcap: c in ``c · tanh(score / c)``, which scores become; None for none.
        sinks: a learned score for each query head, float32 ``[q_heads]``, in the softmax; None for none.

    Returns:
        ``[T, q_heads, D]`` in the type of ``q``.
    """
    dtype = compute_dtype or _compute_dtype(q)
    (rows, q_heads, head_dim), (length, kv_heads, _) = q.shape, keys.shape
    grouped = q.to(dtype).view(rows, kv_heads, q_heads // kv_heads, head_dim)
    scores = torch.einsum("thgd,lhd->hgtl", grouped, keys.to(dtype)) * scale
    if softcap is not None:
        scores = (scores / softcap).tanh() * softcap
    position = torch.arange(length - rows, length, device=q.device)[:, None]
    token = torch.arange(length, device=q.device)
    hidden = token > position  # [T, L]
    if window is not None:
        hidden |= token <= position - window
    scores = scores.masked_fill(hidden, -inf)
    if sinks is not None:  # one more score, without a value
        sink = sinks.to(dtype).view(kv_heads, -1, 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, sink], dim=-1)
    weights = scores.softmax(dim=-1)[..., :length].masked_fill((position < 0).expand(rows, length), 0)
    output = torch.einsum("hgtl,lhd->thgd", weights, values.to(dtype))
    return output.reshape(rows, q_heads, head_dim).to(q.dtype)


def decode_attention(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    *,
    layout: Layout = NHD,
    scale: float,
    k_scale: Scale = 1.0,
    v_scale: Scale = 1.0,
    compute_dtype: torch.dtype | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Return the attention of each sequence's last tokens over its paged context.

    Queries are ``[batch, q_heads, D]`` or ``[batch, queries, q_heads, D]``, and so is what is returned.
    """
    dtype = compute_dtype or _compute_dtype(q)
    output = torch.zeros_like(q)
    for row, length in enumerate(context_lens.tolist()):
        if length:
            mine = q[row] if q.dim() == 4 else q[row : row + 1]
            span = (block_table[row], first_seen(length, len(mine), window), length)
            keys = _read(key_cache, layout.key, k_scale, span, dtype)
            values = _read(value_cache, layout.value, v_scale, span, dtype)
            variant: dict[str, Any] = {"window": window, "softcap": softcap, "sinks": sinks}
            output[row] = attend(mine, keys, values, scale, dtype, **variant).view_as(output[row])
    return output


def contiguous_decode_attention(
    q: Tensor,
    key: Tensor,
    value: Tensor,
    context_lens: Tensor,
    *,
    layout: Layout = NHD,
    scale: float,
    k_scale: Scale = 1.0,
    v_scale: Scale = 1.0,
    compute_dtype: torch.dtype | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Return the same over a padded batch: a block a sequence, as wide as the longest context may be."""
    rows = torch.arange(len(q), device=q.device)[:, None]
    return decode_attention(
        q,
        key,
        value,
        rows,
        context_lens,
        layout=layout,
        scale=scale,
        k_scale=k_scale,
        v_scale=v_scale,
        compute_dtype=compute_dtype,
        window=window,
        softcap=softcap,
        sinks=sinks,
    )


def prefill_attention(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    query_starts: Tensor,
    *,
    layout: Layout = NHD,
    scale: float,
    k_scale: Scale = 1.0,
    v_scale: Scale = 1.0,
    compute_dtype: torch.dtype | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Return the causal attention of each sequence's last tokens over all of it: ``[tokens, q_heads, D]``."""
    dtype = compute_dtype or _compute_dtype(q)
    output = torch.zeros_like(q)
    starts = query_starts.tolist()
    for row, length in enumerate(context_lens.tolist()):
        rows = slice(starts[row], starts[row + 1])
        if rows.stop > rows.start:
            span = (block_table[row], first_seen(length, rows.stop - rows.start, window), length)
            keys = _read(key_cache, layout.key, k_scale, span, dtype)
            values = _read(value_cache, layout.value, v_scale, span, dtype)
            variant: dict[str, Any] = {"window": window, "softcap": softcap, "sinks": sinks}
            output[rows] = attend(q[rows], keys, values, scale, dtype, **variant)
    return output


def tiled_attention(q: Tensor, keys: Tensor, values: Tensor, scale: float, tile: int = 64) -> Tensor:
    """Return what ``attend`` returns, tile by tile, as FlashAttention's forward pass does (Dao, 2023).

    Of the scores only one tile ``[q_heads, tile, tile]`` exists at a time; maximum, sum and output are
    carried from tile to tile and scaled whenever a maximum rises.
    """
    (rows, q_heads, _), (length, kv_heads, _) = q.shape, keys.shape
    keys, values = (x.repeat_interleave(q_heads // kv_heads, dim=1).transpose(0, 1) for x in (keys, values))
    output = torch.empty_like(q)
    for first in range(0, rows, tile):
        mine = q[first : first + tile].transpose(0, 1)  # [q_heads, rows of the tile, D]
        position = torch.arange(first, first + mine.shape[1], device=q.device) + length - rows
        highest = torch.full((*mine.shape[:2], 1), -inf, dtype=q.dtype, device=q.device)
        total, sofar = torch.zeros_like(highest), torch.zeros_like(mine)
        for start in range(0, int(position[-1]) + 1, tile):
            end = min(start + tile, length)
            scores = mine @ keys[:, start:end].transpose(1, 2) * scale
            later = torch.arange(start, end, device=q.device) > position[:, None]
            scores = scores.masked_fill(later, -inf)
            raised = torch.maximum(highest, scores.amax(dim=-1, keepdim=True))
            weights, keep = (scores - raised).exp(), (highest - raised).exp()
            total = total * keep + weights.sum(dim=-1, keepdim=True)
            sofar = sofar * keep + weights @ values[:, start:end]
            highest = raised
        output[first : first + tile] = (sofar / total).transpose(0, 1)
    return output


def reshape_and_cache(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    layout: Layout = NHD,
    k_scale: Scale = 1.0,
    v_scale: Scale = 1.0,
) -> None:
    """Write tokens' keys and values into their slots; a negative slot is passed over."""
    kept = slot_mapping >= 0
    block_size = layout.sizes(key_cache).block_size
    slots = slot_mapping[kept]
    blocks, offsets = slots // block_size, slots % block_size
    for new, cache, storage, scale in (
        (key, key_cache, layout.key, k_scale),
        (value, value_cache, layout.value, v_scale),
    ):
        if isinstance(scale, Tensor) and scale.dim() == 3:
            own = _token_scales(new[kept], cache.dtype)  # [tokens, kv_heads]
            scale[blocks, :, offsets] = own
            stored = _over_token_scales(new[kept], own, cache.dtype)
        else:
            stored = _quantise(new[kept], scale, cache.dtype)  # [tokens, kv_heads, D]
        # An index array brings its axis to the front: [tokens, …] with the cache's other axes in their order.
        index: list[slice | Tensor] = [slice(None)] * len(storage.axes)
        index[storage.axes.index("block")], index[storage.axes.index("token")] = blocks, offsets
        as_token = storage.from_plain(stored[:, None])
        cache[tuple(index)] = as_token.squeeze(storage.axes.index("token"))


def copy_blocks(caches: Sequence[Tensor], pairs: Tensor) -> None:
    """Copy block ``pairs[i, 0]`` of every cache to block ``pairs[i, 1]`` of the same cache."""
    for cache in caches:
        cache[pairs[:, 1]] = cache[pairs[:, 0]]


def gather_blocks(caches: Sequence[Tensor], block_ids: Tensor, out: Tensor) -> None:
    """Copy the named blocks of every cache into ``out``, ``[ids, caches, *block]``."""
    for i, cache in enumerate(caches):
        out[:, i] = cache[block_ids].to(out.device)


def scatter_blocks(staging: Tensor, caches: Sequence[Tensor], block_ids: Tensor) -> None:
    """Copy ``staging``, ``[ids, caches, *block]``, into the named blocks of every cache."""
    for i, cache in enumerate(caches):
        cache[block_ids] = staging[:, i].to(cache.device)


def gather_sequences(
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    layout: Layout = NHD,
) -> None:
    """Copy each sequence's tokens into its row of ``[batch, max_context, kv_heads, D]``.

    What lies beyond a sequence's length is left as it is.
    """
    for row, length in enumerate(context_lens.tolist()):
        for target, cache, storage in ((key, key_cache, layout.key), (value, value_cache, layout.value)):
            target[row, :length] = _tokens(cache, storage, (block_table[row], 0, length))


def gather_scales(pairs: Sequence[tuple[Scale, Scale]], block_table: Tensor, context_lens: Tensor) -> None:
    """Copy the scales of each sequence's tokens into its row of ``[batch, kv_heads, max_context]``."""
    for scales, target in pairs:
        assert isinstance(scales, Tensor)
        assert isinstance(target, Tensor)
        for row, length in enumerate(context_lens.tolist()):
            target[row, :, :length] = _scales_of(scales, (block_table[row], 0, length)).T


def _token_scales(new: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the scales ``[tokens, kv_heads]`` of new vectors ``[tokens, kv_heads, D]``."""
    largest = new.float().abs().amax(dim=-1)
    most = 127 if dtype == torch.int8 else FP8_MAX
    return torch.where(largest.isfinite(), (largest / most).clamp_min(LEAST_SCALE), torch.nan)


def _over_token_scales(new: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Return vectors as they are stored beside their scales; zeros where a scale is NaN."""
    numbers = (new.float() / scales[..., None]).nan_to_num(nan=0.0)
    if dtype == torch.int8:
        return numbers.round().to(dtype)
    return numbers.clamp(-FP8_MAX, FP8_MAX).to(dtype)


def _quantise(new: Tensor, scale: Scale, dtype: torch.dtype) -> Tensor:
    """Return ``[tokens, kv_heads, D]`` as it is stored; only FP8 is scaled."""
    if dtype != torch.float8_e4m3fn:
        return new.to(dtype)
    divisor = scale[:, None] if isinstance(scale, Tensor) else scale
    return (new.float() / divisor).clamp(-FP8_MAX, FP8_MAX).to(dtype)


def _dequantise(stored: Tensor, scale: Scale, dtype: torch.dtype) -> Tensor:
    """Return what stored numbers, ``[tokens, kv_heads, D]``, stand for."""
    if stored.dtype != torch.float8_e4m3fn:
        return stored.to(dtype)
    return stored.to(dtype) * (scale.to(dtype)[:, None] if isinstance(scale, Tensor) else scale)


def _compute_dtype(q: Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32


Span = tuple[Tensor, int, int]
"""Of a sequence: its row of the block table, the first token that is read, and the one after the last."""


def _read(cache: Tensor, storage: Storage, scale: Scale, span: Span, dtype: torch.dtype) -> Tensor:
    """Return what some of a sequence's tokens stand for, ``[tokens, kv_heads, D]``."""
    stored = _tokens(cache, storage, span)
    if isinstance(scale, Tensor) and scale.dim() == 3:
        return stored.to(dtype) * _scales_of(scale, span).to(dtype)[..., None]
    return _dequantise(stored, scale, dtype)


def _scales_of(scales: Tensor, span: Span) -> Tensor:
    """Return the scales of some of a sequence's tokens, ``[tokens, kv_heads]``."""
    blocks, inside = _blocks(span, scales.shape[2])
    return scales[blocks].transpose(1, 2).flatten(0, 1)[inside]


def _tokens(cache: Tensor, storage: Storage, span: Span) -> Tensor:
    """Return some of a sequence's tokens as they are stored, ``[tokens, kv_heads, D]``."""
    blocks, inside = _blocks(span, storage.sizes(cache).block_size)
    return storage.to_plain(cache[blocks]).flatten(0, 1)[inside]


def _blocks(span: Span, block_size: int) -> tuple[Tensor, slice]:
    """Return the blocks that hold a span, and where in them it is."""
    table, first, end = span
    column = first // block_size
    blocks = table[column : -(-end // block_size)].long()
    return blocks, slice(first - column * block_size, end - column * block_size)

"""Every op in vectorised torch: the oracle of the tests and the implementation for CPUs.

The functions take the arguments of the ops in ``ops.py`` without checking them. They run on any device and
read no slot without a token. They compute in float32, in float64 for float64 queries (so that upcast inputs
give the exact answer), or in ``compute_dtype``, rounding after every step as eager code in that type does.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from pagesim.kernels.cache import Cache, LatentCache

FP8_MAX = 448.0
"""The largest number in e4m3."""


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
        keys: ``[L, kv_heads, D]``; if L < T, the first queries belong to no token and give zeros.
        values: ``[L, kv_heads, E]``.
        scale: factor for dot products.
        compute_dtype: type of all intermediates.
        window: tokens that a query sees, including its own; None for all so far.
        softcap: c in ``c · tanh(score / c)``, which replaces scores; None for no cap.
        sinks: learned score of each query head in the softmax, float32 ``[q_heads]``; None for none.

    Returns:
        ``[T, q_heads, E]`` in the type of ``q``.
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
    return output.reshape(rows, q_heads, values.shape[2]).to(q.dtype)


def paged_attention(
    q: Tensor,
    cache: Cache,
    block_table: Tensor,
    context_lens: Tensor,
    query_starts: Tensor | None = None,
    *,
    scale: float,
    compute_dtype: torch.dtype | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Return the attention of each sequence's last tokens over its context, ``[tokens, q_heads, D]``."""
    dtype = compute_dtype or _compute_dtype(q)
    output = torch.zeros_like(q)
    starts = range(len(q) + 1) if query_starts is None else query_starts.tolist()
    for row, length in enumerate(context_lens.tolist()):
        mine = slice(starts[row], starts[row + 1])
        count = mine.stop - mine.start
        if not length or not count:
            continue
        first = 0 if window is None else max(length - count - window + 1, 0)
        blocks, inside = _blocks(block_table[row], first, length, cache.sizes.block_size)
        keys = _read(cache.keys[blocks], cache.k_scale, dtype)[inside]
        values = _read(cache.values[blocks], cache.v_scale, dtype)[inside]
        output[mine] = attend(
            q[mine], keys, values, scale, dtype, window=window, softcap=softcap, sinks=sinks
        )
    return output


def mla_decode_attention(
    q: Tensor, cache: LatentCache, block_table: Tensor, context_lens: Tensor, *, scale: float
) -> Tensor:
    """Return the attention of each sequence's last token, ``[batch, q_heads, latent_dim]``."""
    width = cache.latent_dim
    output = torch.zeros_like(q[..., :width])
    for row, length in enumerate(context_lens.tolist()):
        if length:
            blocks, inside = _blocks(block_table[row], 0, length, cache.sizes.block_size)
            keys = cache.cache[blocks].flatten(0, 1)[inside, None]  # [L, 1, latent_dim + rope_dim]
            output[row] = attend(q[row : row + 1], keys, keys[..., :width], scale)[0]
    return output


def reshape_and_cache(key: Tensor, value: Tensor, cache: Cache, slot_mapping: Tensor) -> None:
    """Write tokens' keys and values into their slots; negative slots are skipped."""
    kept = slot_mapping >= 0
    slots = slot_mapping[kept]
    at = (slots // cache.sizes.block_size, slots % cache.sizes.block_size)
    cache.keys[at] = _stored(key[kept], cache.k_scale, cache.dtype)
    cache.values[at] = _stored(value[kept], cache.v_scale, cache.dtype)


def mla_write(latent: Tensor, rope: Tensor, cache: LatentCache, slot_mapping: Tensor) -> None:
    """Write tokens' latents and rotated parts into their slots; negative slots are skipped."""
    kept = slot_mapping >= 0
    slots = slot_mapping[kept]
    at = (slots // cache.sizes.block_size, slots % cache.sizes.block_size)
    cache.cache[at] = torch.cat([latent, rope], dim=1)[kept]


def copy_blocks(caches: Sequence[Tensor], pairs: Tensor) -> None:
    """Copy block ``pairs[i, 0]`` of every cache to block ``pairs[i, 1]`` of the same cache."""
    for cache in caches:
        cache[pairs[:, 1]] = cache[pairs[:, 0]]


def gather_blocks(caches: Sequence[Tensor], block_ids: Tensor, out: Tensor) -> None:
    """Copy the given blocks of every cache into ``out``, ``[ids, caches, *block]``."""
    for i, cache in enumerate(caches):
        out[:, i] = cache[block_ids].to(out.device)


def scatter_blocks(staging: Tensor, caches: Sequence[Tensor], block_ids: Tensor) -> None:
    """Copy ``staging``, ``[ids, caches, *block]``, into the given blocks of every cache."""
    for i, cache in enumerate(caches):
        cache[block_ids] = staging[:, i].to(cache.device)


def _stored(new: Tensor, scale: float | Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``[tokens, kv_heads, D]`` in the stored type; only FP8 is scaled."""
    if dtype != torch.float8_e4m3fn:
        return new.to(dtype)
    divisor = scale[:, None] if isinstance(scale, Tensor) else scale
    return (new.float() / divisor).clamp(-FP8_MAX, FP8_MAX).to(dtype)


def _read(stored: Tensor, scale: float | Tensor, dtype: torch.dtype) -> Tensor:
    """Return the values of stored blocks ``[blocks, block_size, kv_heads, D]``, token by token."""
    tokens = stored.flatten(0, 1).to(dtype)
    if stored.dtype != torch.float8_e4m3fn:
        return tokens
    return tokens * (scale.to(dtype)[:, None] if isinstance(scale, Tensor) else scale)


def _compute_dtype(q: Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _blocks(table: Tensor, first: int, end: int, block_size: int) -> tuple[Tensor, slice]:
    """Return the blocks that hold tokens ``first`` to ``end``, and the tokens' range within these."""
    column = first // block_size
    blocks = table[column : -(-end // block_size)].long()
    return blocks, slice(first - column * block_size, end - column * block_size)

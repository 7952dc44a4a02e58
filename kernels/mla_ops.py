"""The ops of multi-head latent attention (MLA): decode over paged latents, and writes; see ``api.py``."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import torch
from torch import Tensor

from pagesim.errors import PagesimError
from pagesim.kernels import reference
from pagesim.kernels.checks import (
    bounds_are_checked,
    check_contexts,
    check_ids,
    check_out,
    check_tensor,
    use_triton,
)
from pagesim.kernels.gpu import gpu_of
from pagesim.kernels.latents import TILE_BYTES, LatentCache, head_rows
from pagesim.kernels.launch import run_all
from pagesim.kernels.planner import DecodePlan, plan_decode


def mla_decode_attention(
    q: Tensor,
    cache: LatentCache,
    block_table: Tensor,
    context_lens: Tensor,
    *,
    scale: float,
    plan: DecodePlan | None = None,
    out: Tensor | None = None,
    backend: str = "auto",
    check: bool = True,
) -> Tensor:
    """Attend with one new token a sequence to its paged context of latents (MLA, DeepSeek-V2, 2024).

    Args:
        q: ``[batch, q_heads, latent_dim + rope_dim]``: of each head the query times the key projection, and
            the rotated part.
        cache: of the queries' type.
        block_table: int32 ``[batch, max_blocks]``.
        context_lens: int32 ``[batch]``; a sequence of length 0 gets zeros.
        scale: of the dot products. It follows from the head size before the projections, which the cache does
            not show: 192 in DeepSeek-V3.
        plan: from ``mla_plan``; without one, contexts may be of any length that the table has room for.
        out: where the result goes, ``[batch, q_heads, latent_dim]``.
        backend: what computes it.
        check: whether the other arguments are looked at.

    Returns:
        ``[batch, q_heads, latent_dim]``, which the value projection is yet to be multiplied with.

    Raises:
        PagesimError: an argument is off.
    """
    if check:
        _check_queries(q, cache)
        check_contexts(q.shape[0], block_table, context_lens, cache.sizes, q.device)
        if not isfinite(scale):
            raise PagesimError(f"scale is {scale}; a finite number is needed")
    out = check_out(out, q[..., : cache.latent_dim], check)
    if use_triton(backend, q):
        from pagesim.kernels import mla

        if plan is None:
            longest = block_table.shape[1] * cache.sizes.block_size
            plan = mla_plan(q, cache, [longest] * len(q), capacity=True)
        return run_all(mla.launches(q, cache, block_table, context_lens, scale, plan, out), out)
    vectors = cache.cache.unsqueeze(2)  # [blocks, block_size, 1, latent_dim + rope_dim]
    whole = reference.decode_attention(q, vectors, vectors, block_table, context_lens, scale=scale)
    return out.copy_(whole[..., : cache.latent_dim])


def mla_write(
    latent: Tensor,
    rope: Tensor,
    cache: LatentCache,
    slot_mapping: Tensor,
    *,
    backend: str = "auto",
    check: bool = True,
) -> None:
    """Write new tokens' latents, and the rotated parts of their keys, into their slots.

    Args:
        latent: ``[tokens, latent_dim]``, of the cache's type.
        rope: ``[tokens, rope_dim]``, likewise.
        cache: where to.
        slot_mapping: int64 ``[tokens]``, ``block * block_size + offset``, none twice; a negative one passes a
            token over.
        backend: what does it.
        check: whether the other arguments are looked at.

    Raises:
        PagesimError: an argument is off.
    """
    if check:
        _check_cache(cache)
        given = (("latent", latent, cache.latent_dim), ("rope", rope, cache.rope_dim))
        for name, new, width in given:
            check_tensor(name, new, (len(latent), width), (cache.dtype,), cache.device)
        check_tensor(
            "slot_mapping", slot_mapping, (len(latent),), (torch.int64,), cache.device, contiguous=True
        )
        room = cache.sizes.num_blocks * cache.sizes.block_size
        check_ids("slot_mapping", slot_mapping, room, least=-1)
        if bounds_are_checked(slot_mapping):
            check_ids("slot_mapping", slot_mapping[slot_mapping >= 0], room, distinct=True)
    if use_triton(backend, latent):
        from pagesim.kernels import mla

        run_all([mla.write_launch(latent, rope, cache, slot_mapping)], latent)
        return
    kept = slot_mapping >= 0
    slots = slot_mapping[kept]
    block_size = cache.sizes.block_size
    cache.cache[slots // block_size, slots % block_size] = torch.cat([latent[kept], rope[kept]], dim=1)


def mla_plan(
    q: Tensor,
    cache: LatentCache,
    context_lens: Tensor | Sequence[int],
    *,
    capacity: bool = False,
    num_splits: int | None = None,
) -> DecodePlan:
    """Plan a decode step over latents for the GPU that the queries are on (an H200, where they are on none).

    Args:
        q: ``[batch, q_heads, latent_dim + rope_dim]``.
        cache: whose tokens.
        context_lens: tokens of each sequence; a tensor on a GPU is waited for.
        capacity: whether these are the most tokens that sequences may have, in a CUDA graph say.
        num_splits: into how many splits the longest sequence is cut, instead of what the planner would
            choose.

    Raises:
        PagesimError: an argument is off.
    """
    _check_queries(q, cache)
    head_tiles = -(-q.shape[1] // head_rows(q.shape[1], q.dtype))
    lengths = context_lens.tolist() if isinstance(context_lens, Tensor) else list(context_lens)
    return plan_decode(
        lengths,
        # To the planner, what reads a sequence again is another KV head.
        q_heads=head_tiles,
        kv_heads=head_tiles,
        head_dim=cache.sizes.head_dim,
        block_size=cache.sizes.block_size,
        kv_bytes=cache.dtype.itemsize,
        gpu=gpu_of(q.device),
        capacity=capacity,
        num_splits=num_splits,
        work_list=False,
        tile=TILE_BYTES // cache.dtype.itemsize,
        num_warps=8,
        num_stages=3,
    )


def _check_cache(cache: object) -> None:
    if not isinstance(cache, LatentCache):
        raise PagesimError(f"cache is a {type(cache).__name__}; LatentCache(cache) is needed")


def _check_queries(q: Tensor, cache: LatentCache) -> None:
    _check_cache(cache)
    check_tensor("q", q, ("batch", "q_heads", cache.sizes.head_dim), (cache.dtype,), cache.device)
    if not q.shape[1]:
        raise PagesimError(f"q has the shape {list(q.shape)}; at least one head is needed")

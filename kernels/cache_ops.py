"""The ops that move cached data: writing, copying, gathering and scattering blocks. See ``ops.py``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pagesim.errors import PagesimError
from pagesim.kernels import reference
from pagesim.kernels.cache import BlockPool, Cache, LatentCache
from pagesim.kernels.checks import (
    FP8,
    QUERY_DTYPES,
    bounds_are_checked,
    check_batch,
    check_ids,
    check_kind,
    check_slots,
    check_tensor,
    use_triton,
)


def reshape_and_cache(
    key: Tensor,
    value: Tensor,
    cache: Cache,
    slot_mapping: Tensor,
    *,
    backend: str = "auto",
    check: bool = True,
) -> None:
    """Write new tokens' keys and values into their slots, in the cache's layout and type.

    Args:
        key: ``[tokens, kv_heads, D]``. For FP8 it is divided by the cache's scale and clipped to ±448; NaN
            stays NaN.
        value: like ``key``.
        cache: cache of the same type as ``key``, or FP8.
        slot_mapping: int64 ``[tokens]``, ``block · block_size + slot in the block``; −1 for a token that is
            not written. No slot may occur twice.
        backend: implementation to use.
        check: whether to check the other arguments.

    Raises:
        PagesimError: an argument is invalid.
    """
    if check:
        check_kind("cache", cache, Cache)
        blocks, block_size, *vector = cache.sizes
        dtypes = QUERY_DTYPES if cache.dtype == FP8 else (cache.dtype,)
        check_tensor("key", key, ("tokens", *vector), dtypes, cache.device)
        check_tensor("value", value, key.shape, (key.dtype,), cache.device)
        check_slots(slot_mapping, len(key), blocks * block_size, cache.device)
    if not use_triton(backend, cache.key_cache):
        reference.reshape_and_cache(key, value, cache, slot_mapping)
        return
    from pagesim.kernels import cache_write

    cache_write.launch(key, value, cache, slot_mapping).run(cache.key_cache)


def mla_write(
    latent: Tensor,
    rope: Tensor,
    cache: LatentCache,
    slot_mapping: Tensor,
    *,
    backend: str = "auto",
    check: bool = True,
) -> None:
    """Write new tokens' latents and the rotated parts of their keys into their slots.

    Args:
        latent: ``[tokens, latent_dim]``, of the cache's type.
        rope: ``[tokens, rope_dim]``, of the cache's type.
        cache: cache to write to.
        slot_mapping: int64 ``[tokens]``, as for ``reshape_and_cache``.
        backend: implementation to use.
        check: whether to check the other arguments.

    Raises:
        PagesimError: an argument is invalid.
    """
    if check:
        check_kind("cache", cache, LatentCache)
        for name, new, width in (("latent", latent, cache.latent_dim), ("rope", rope, cache.rope_dim)):
            check_tensor(name, new, (len(latent), width), (cache.dtype,), cache.device)
        check_slots(slot_mapping, len(latent), cache.sizes.num_blocks * cache.sizes.block_size, cache.device)
    if not use_triton(backend, latent):
        reference.mla_write(latent, rope, cache, slot_mapping)
        return
    from pagesim.kernels import cache_write

    cache_write.launch(latent, rope, cache, slot_mapping).run(latent)


def gather_sequences(
    cache: Cache,
    block_table: Tensor,
    context_lens: Tensor,
    *,
    max_context: int | None = None,
    out: tuple[Cache, Tensor] | None = None,
    check: bool = True,
) -> tuple[Cache, Tensor]:
    """Copy paged contexts into contiguous ones, as attention without a paged kernel must.

    The copy is torch's own gather of whole blocks, as in systems without paged kernels.

    Args:
        cache: cache that holds the contexts.
        block_table: int32 ``[batch, max_blocks]``.
        context_lens: int32 ``[batch]``; the result is arbitrary beyond these lengths.
        max_context: the longest context, if known; otherwise, the table's capacity is used.
        out: result of an earlier call for such a batch, to be overwritten.
        check: whether to check the other arguments.

    Returns:
        A cache in which the blocks of each sequence are contiguous and in order, and its block table.

    Raises:
        PagesimError: an argument is invalid.
    """
    if check:
        check_kind("cache", cache, Cache)
        check_batch(block_table, context_lens, *cache.sizes[:2], cache.device)
    size, batch = cache.sizes.block_size, len(context_lens)
    width = (
        block_table.shape[1] if max_context is None else min(block_table.shape[1], -(-max_context // size))
    )
    column = torch.arange(width, dtype=torch.int32, device=cache.device)
    used = column < -(-context_lens // size)[:, None]  # [batch, width]
    blocks = torch.where(used, block_table[:, :width], 0).flatten().long()
    if out is None:
        both = (each[blocks] for each in (cache.keys, cache.values))
        gathered = Cache(*both, k_scale=cache.k_scale, v_scale=cache.v_scale)
        rows = torch.arange(batch, dtype=torch.int32, device=cache.device)[:, None]
        return gathered, rows * width + column
    for source, target in ((cache.keys, out[0].keys), (cache.values, out[0].values)):
        torch.index_select(source, 0, blocks, out=target)
    return out


def copy_blocks(
    caches: BlockPool | Sequence[Tensor], pairs: Tensor, *, backend: str = "auto", check: bool = True
) -> None:
    """Copy blocks within each of several caches, in one launch (copy-on-write).

    Args:
        caches: tensors of one shape whose first axis is the block, such as the key and value caches of all
            layers. A ``BlockPool`` of them was already checked when it was created.
        pairs: int64 ``[pairs, 2]``, (from, to). No block may be written twice, or both written and read.
        backend: implementation to use.
        check: whether to check the pairs.

    Raises:
        PagesimError: an argument is invalid.
    """
    pool = _pool_of(caches)
    if check:
        check_tensor("pairs", pairs, ("pairs", 2), (torch.int64,), pool.device, contiguous=True)
        check_ids("pairs", pairs, pool.num_blocks)
        check_ids("pairs[:, 1]", pairs[:, 1], pool.num_blocks, distinct=True)
        if bounds_are_checked(pairs) and torch.isin(pairs[:, 1], pairs[:, 0]).any():
            raise PagesimError("pairs holds a block that is both read and written; copies happen in no order")
    if not use_triton(backend, pool.caches[0]):
        reference.copy_blocks(pool.caches, pairs)
        return
    from pagesim.kernels import blocks

    blocks.copy(pool, pairs).run(pairs)


def gather_blocks(
    caches: BlockPool | Sequence[Tensor],
    block_ids: Tensor,
    *,
    out: Tensor | None = None,
    backend: str = "auto",
    check: bool = True,
) -> Tensor:
    """Gather blocks of several caches next to each other, in one launch, so that a swap sends one piece.

    Args:
        caches: tensors of one shape whose first axis is the block, or a ``BlockPool`` of them.
        block_ids: int64 ``[ids]``.
        out: ``[ids, caches, *block]`` to write to, if given.
        backend: implementation to use.
        check: whether to check ids and memory.

    Returns:
        ``[ids, caches, *block]``: each block's part in every cache.

    Raises:
        PagesimError: an argument is invalid.
    """
    pool = _pool_of(caches)
    if check:
        _check_ids(pool, block_ids)
    shape = (len(block_ids), len(pool), *pool.block)
    if out is None:
        out = pool.caches[0].new_empty(shape)
    elif check:
        check_tensor("out", out, shape, (pool.dtype,), pool.device, contiguous=True)
    if not use_triton(backend, pool.caches[0]):
        reference.gather_blocks(pool.caches, block_ids, out)
        return out
    from pagesim.kernels import blocks

    blocks.gather(pool, block_ids, out).run(out)
    return out


def scatter_blocks(
    staging: Tensor,
    caches: BlockPool | Sequence[Tensor],
    block_ids: Tensor,
    *,
    backend: str = "auto",
    check: bool = True,
) -> None:
    """Copy the result of ``gather_blocks`` into blocks of several caches, in one launch.

    Args:
        staging: ``[ids, caches, *block]``.
        caches: tensors of one shape whose first axis is the block, or a ``BlockPool`` of them.
        block_ids: int64 ``[ids]``, without repetition.
        backend: implementation to use.
        check: whether to check ids and memory.

    Raises:
        PagesimError: an argument is invalid.
    """
    pool = _pool_of(caches)
    if check:
        _check_ids(pool, block_ids, distinct=True)
        shape = (len(block_ids), len(pool), *pool.block)
        check_tensor("staging", staging, shape, (pool.dtype,), pool.device, contiguous=True)
    if not use_triton(backend, pool.caches[0]):
        reference.scatter_blocks(staging, pool.caches, block_ids)
        return
    from pagesim.kernels import blocks

    blocks.scatter(staging, pool, block_ids).run(block_ids)


def _check_ids(pool: BlockPool, block_ids: Tensor, *, distinct: bool = False) -> None:
    check_tensor("block_ids", block_ids, ("ids",), (torch.int64,), pool.device, contiguous=True)
    check_ids("block_ids", block_ids, pool.num_blocks, distinct=distinct)


def _pool_of(caches: BlockPool | Sequence[Tensor]) -> BlockPool:
    """Return a pool of these caches, checked here unless it already is a pool."""
    return caches if isinstance(caches, BlockPool) else BlockPool(caches)

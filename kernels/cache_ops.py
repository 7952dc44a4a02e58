"""The ops that move what is cached: writing, copying, gathering and scattering blocks. See ``api.py``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pagesim.errors import PagesimError
from pagesim.kernels import reference
from pagesim.kernels.cache import BlockPool, Cache, pool_of
from pagesim.kernels.checks import (
    BYTES,
    QUERY_DTYPES,
    bounds_are_checked,
    check_cache,
    check_contexts,
    check_ids,
    check_lengths,
    check_tensor,
    use_triton,
)
from pagesim.kernels.launch import run_all


def gather_sequences(
    cache: Cache,
    block_table: Tensor,
    context_lens: Tensor,
    *,
    max_context: int | None = None,
    out: Cache | None = None,
    backend: str = "auto",
    check: bool = True,
) -> Cache:
    """Copy paged contexts into a padded contiguous batch.

    Args:
        cache: whose contexts.
        block_table: int32 ``[batch, max_blocks]``.
        context_lens: int32 ``[batch]``; what lies beyond them in the result is left as it is.
        max_context: how wide the batch is; without it as wide as ``out`` or the table.
        out: what an earlier call for such a batch returned, to write to.
        backend: what does it.
        check: whether the other arguments are looked at.

    Returns:
        A contiguous cache of the same type and scales, its tensors ``[batch, max_context, kv_heads, D]``.

    Raises:
        PagesimError: an argument is off.
    """
    batch = len(context_lens)
    if check:
        check_cache(cache, Cache, paged=True)
        check_contexts(batch, block_table, context_lens, cache.sizes, cache.device)
        if out is not None:
            check_cache(out, Cache, paged=False)
    sizes = cache.sizes
    if max_context is None:
        max_context = block_table.shape[1] * sizes.block_size if out is None else out.sizes.block_size
    if check:
        check_lengths(context_lens, max_context, "as max_context says")
    shape = (batch, max_context, sizes.kv_heads, sizes.head_dim)
    if out is None:
        tensors = (cache.key_cache.new_empty(shape), cache.value_cache.new_empty(shape))
        scales = [cache.k_scale, cache.v_scale]
        if cache.has_token_scales:
            room = (batch, sizes.kv_heads, max_context)
            scales = [torch.empty(room, device=cache.device) for _ in scales]
        out = Cache(*tensors, k_scale=scales[0], v_scale=scales[1], paged=False)
    elif check:
        for name, tensor in (("out.key_cache", out.key_cache), ("out.value_cache", out.value_cache)):
            check_tensor(name, tensor, shape, (cache.dtype,), cache.device)
        if out.has_token_scales is not cache.has_token_scales:
            raise PagesimError(
                "out has scales of another kind than cache; gather_sequences makes one that fits"
            )
    if use_triton(backend, cache.key_cache):
        from pagesim.kernels import sequences

        run_all([sequences.launch(cache, block_table, context_lens, out)], out.key_cache)
    else:
        reference.gather_sequences(
            cache.key_cache,
            cache.value_cache,
            block_table,
            context_lens,
            out.key_cache,
            out.value_cache,
            layout=cache.layout,
        )
        if cache.has_token_scales:
            pairs = ((cache.k_scale, out.k_scale), (cache.v_scale, out.v_scale))
            reference.gather_scales(pairs, block_table, context_lens)
    return out


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
        key: ``[tokens, kv_heads, D]``; in FP8 it is divided by the cache's scale, and what then exceeds ±448
            becomes ±448. A scale of each token and head is computed here: the vector's largest number over
            127 (int8) or 448 (FP8); NaN for a vector that holds NaN or infinity, all of which then reads NaN.
        value: as ``key``.
        cache: of the type of ``key``, FP8 or int8.
        slot_mapping: int64 ``[tokens]``, ``block · block_size + slot in it``; −1 for a token that is not
            written. No slot may occur twice.
        backend: what does it.
        check: whether the other arguments are looked at.

    Raises:
        PagesimError: an argument is off.
    """
    if check:
        check_cache(cache, Cache, paged=True)
        _check_new(key, value, cache, slot_mapping)
    if use_triton(backend, cache.key_cache):
        from pagesim.kernels import cache_write

        run_all([cache_write.launch(key, value, cache, slot_mapping)], cache.key_cache)
    else:
        pair = (cache.key_cache, cache.value_cache)
        reference.reshape_and_cache(key, value, *pair, slot_mapping, **cache.as_stored)


def copy_blocks(
    caches: BlockPool | Sequence[Tensor], pairs: Tensor, *, backend: str = "auto", check: bool = True
) -> None:
    """Copy blocks within each of several caches, in one launch (copy-on-write).

    Args:
        caches: tensors of one shape whose first axis is the block: the key and value caches of all layers,
            say. A ``BlockPool`` of them was checked when it was made.
        pairs: int64 ``[pairs, 2]``, from and to. No block may be written twice, nor written and read.
        backend: what does it.
        check: whether the pairs are looked at.

    Raises:
        PagesimError: an argument is off.
    """
    pool = pool_of(caches)
    if check:
        check_tensor("pairs", pairs, ("pairs", 2), (torch.int64,), pool.device, contiguous=True)
        check_ids("pairs", pairs, pool.num_blocks)
        check_ids("pairs[:, 1]", pairs[:, 1], pool.num_blocks, distinct=True)
        if bounds_are_checked(pairs) and torch.isin(pairs[:, 1], pairs[:, 0]).any():
            raise PagesimError("pairs holds a block that is both read and written; copies happen in no order")
    if use_triton(backend, pool.caches[0]):
        from pagesim.kernels import blocks

        run_all([blocks.copy(pool, pairs)], pairs)
    else:
        reference.copy_blocks(pool.caches, pairs)


def gather_blocks(
    caches: BlockPool | Sequence[Tensor],
    block_ids: Tensor,
    *,
    out: Tensor | None = None,
    backend: str = "auto",
    check: bool = True,
) -> Tensor:
    """Copy blocks of several caches next to each other, in one launch: what a swap sends out in one piece.

    Args:
        caches: tensors of one shape whose first axis is the block, or a ``BlockPool`` of them.
        block_ids: int64 ``[ids]``.
        out: ``[ids, caches, *block]`` to write to; beside caches on a GPU it may be pinned host memory.
        backend: what does it.
        check: whether ids and memory are looked at.

    Returns:
        ``[ids, caches, *block]``: of each block its part in every cache.

    Raises:
        PagesimError: an argument is off.
    """
    pool = pool_of(caches)
    if check:
        _check_ids(pool, block_ids)
    if out is None:
        out = pool.caches[0].new_empty(_staging_shape(pool, block_ids))
    elif check:
        _check_staging("out", out, pool, block_ids)
    if use_triton(backend, pool.caches[0]):
        from pagesim.kernels import blocks

        run_all([blocks.gather(pool, block_ids, out)], block_ids)
    else:
        reference.gather_blocks(pool.caches, block_ids, out)
    return out


def scatter_blocks(
    staging: Tensor,
    caches: BlockPool | Sequence[Tensor],
    block_ids: Tensor,
    *,
    backend: str = "auto",
    check: bool = True,
) -> None:
    """Copy what ``gather_blocks`` gathered into blocks of several caches, in one launch.

    Args:
        staging: ``[ids, caches, *block]``; beside caches on a GPU it may be pinned host memory.
        caches: tensors of one shape whose first axis is the block, or a ``BlockPool`` of them.
        block_ids: int64 ``[ids]``, none twice.
        backend: what does it.
        check: whether ids and memory are looked at.

    Raises:
        PagesimError: an argument is off.
    """
    pool = pool_of(caches)
    if check:
        _check_ids(pool, block_ids, distinct=True)
        _check_staging("staging", staging, pool, block_ids)
    if use_triton(backend, pool.caches[0]):
        from pagesim.kernels import blocks

        run_all([blocks.scatter(staging, pool, block_ids)], block_ids)
    else:
        reference.scatter_blocks(staging, pool.caches, block_ids)


def _check_new(key: Tensor, value: Tensor, cache: Cache, slot_mapping: Tensor) -> None:
    sizes = cache.sizes
    dtypes = QUERY_DTYPES if cache.dtype in BYTES else (cache.dtype,)
    check_tensor("key", key, ("tokens", sizes.kv_heads, sizes.head_dim), dtypes, cache.device)
    check_tensor("value", value, key.shape, (key.dtype,), cache.device)
    check_tensor("slot_mapping", slot_mapping, (len(key),), (torch.int64,), cache.device, contiguous=True)
    slots = sizes.num_blocks * sizes.block_size
    check_ids("slot_mapping", slot_mapping, slots, least=-1)
    if bounds_are_checked(slot_mapping):
        check_ids("slot_mapping", slot_mapping[slot_mapping >= 0], slots, distinct=True)


def _staging_shape(pool: BlockPool, block_ids: Tensor) -> tuple[int, ...]:
    return (len(block_ids), len(pool), *pool.block)


def _check_ids(pool: BlockPool, block_ids: Tensor, *, distinct: bool = False) -> None:
    check_tensor("block_ids", block_ids, ("ids",), (torch.int64,), pool.device, contiguous=True)
    check_ids("block_ids", block_ids, pool.num_blocks, distinct=distinct)


def _check_staging(name: str, staging: Tensor, pool: BlockPool, block_ids: Tensor) -> None:
    reachable = (
        pool.is_cuda and isinstance(staging, Tensor) and staging.device.type == "cpu" and staging.is_pinned()
    )
    shape = _staging_shape(pool, block_ids)
    check_tensor(name, staging, shape, (pool.dtype,), None if reachable else pool.device, contiguous=True)

"""The ops that move what is cached: writing, copying, gathering and scattering blocks. See ``api.py``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pagesim.errors import PagesimError
from pagesim.kernels import reference
from pagesim.kernels.checks import (
    CACHES,
    FP8,
    QUERY_DTYPES,
    bounds_are_checked,
    check_blocks,
    check_caches,
    check_contexts,
    check_ids,
    check_lengths,
    check_tensor,
    scales,
    use_triton,
)
from pagesim.kernels.launch import run_all
from pagesim.kernels.layouts import NHD, Layout, find_layout


def gather_sequences(
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    *,
    max_context: int | None = None,
    layout: str | Layout = NHD,
    out: tuple[Tensor, Tensor] | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Copy paged contexts into a padded contiguous batch.

    Args:
        key_cache: blocks of keys in ``layout``.
        value_cache: blocks of values in ``layout``.
        block_table: int32 ``[batch, max_blocks]``.
        context_lens: int32 ``[batch]``; what lies beyond them in the result is left as it is.
        max_context: how wide the batch is; without it as wide as the table.
        layout: of the caches.
        out: two tensors to write to.
        backend: what does it.

    Returns:
        Keys and values, ``[batch, max_context, kv_heads, D]`` in the caches' type.

    Raises:
        PagesimError: an argument is off.
    """
    layout = find_layout(layout)
    sizes = check_caches(key_cache, value_cache, layout, names=CACHES)
    batch = len(context_lens)
    check_contexts(batch, block_table, context_lens, sizes, key_cache.device)
    if max_context is None:
        max_context = block_table.shape[1] * sizes.block_size
    check_lengths(context_lens, max_context, "as max_context says")
    shape = (batch, max_context, sizes.kv_heads, sizes.head_dim)
    key, value = out or (key_cache.new_empty(shape), value_cache.new_empty(shape))
    for name, tensor in (("out[0]", key), ("out[1]", value)):
        check_tensor(name, tensor, shape, (key_cache.dtype,), key_cache.device)
    if use_triton(backend, key_cache):
        from pagesim.kernels import sequences

        launch = sequences.launch(key_cache, value_cache, block_table, context_lens, layout, key, value)
        run_all([launch], key)
    else:
        reference.gather_sequences(
            key_cache, value_cache, block_table, context_lens, key, value, layout=layout
        )
    return key, value


def reshape_and_cache(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    layout: str | Layout = NHD,
    k_scale: float | Tensor = 1.0,
    v_scale: float | Tensor = 1.0,
    backend: str = "auto",
) -> None:
    """Write new tokens' keys and values into their slots, in the cache's layout and type.

    Args:
        key: ``[tokens, kv_heads, D]``.
        value: as ``key``.
        key_cache: blocks of keys in ``layout``, of the type of ``key`` or FP8.
        value_cache: blocks of values in ``layout``.
        slot_mapping: int64 ``[tokens]``, ``block · block_size + slot in it``; −1 for a token that is not
            written. No slot may occur twice.
        layout: of the caches.
        k_scale: what FP8 keys are divided by; what then exceeds ±448 becomes ±448.
        v_scale: what FP8 values are divided by.
        backend: what does it.

    Raises:
        PagesimError: an argument is off.
    """
    layout = find_layout(layout)
    sizes = check_caches(key_cache, value_cache, layout, names=CACHES)
    dtypes = QUERY_DTYPES if key_cache.dtype == FP8 else (key_cache.dtype,)
    check_tensor("key", key, ("tokens", sizes.kv_heads, sizes.head_dim), dtypes, key_cache.device)
    check_tensor("value", value, key.shape, (key.dtype,), key_cache.device)
    check_tensor("slot_mapping", slot_mapping, (len(key),), (torch.int64,), key_cache.device, contiguous=True)
    check_ids("slot_mapping", slot_mapping, sizes.num_blocks * sizes.block_size, least=-1)
    if bounds_are_checked(slot_mapping):
        kept = slot_mapping[slot_mapping >= 0]
        check_ids("slot_mapping", kept, sizes.num_blocks * sizes.block_size, distinct=True)
    _, k_scale, v_scale = scales(None, k_scale, v_scale, sizes, key_cache)
    if use_triton(backend, key_cache):
        from pagesim.kernels import cache_write

        launch = cache_write.launch(
            key, value, key_cache, value_cache, slot_mapping, layout, k_scale, v_scale
        )
        run_all([launch], key_cache)
    else:
        reference.reshape_and_cache(
            key, value, key_cache, value_cache, slot_mapping, layout=layout, k_scale=k_scale, v_scale=v_scale
        )


def copy_blocks(caches: Sequence[Tensor], pairs: Tensor, *, backend: str = "auto") -> None:
    """Copy blocks within each of several caches, in one launch (copy-on-write).

    Args:
        caches: tensors of one shape whose first axis is the block: the key and value caches of all layers,
            say.
        pairs: int64 ``[pairs, 2]``, from and to. No block may be written twice, nor written and read.
        backend: what does it.

    Raises:
        PagesimError: an argument is off.
    """
    caches = check_blocks(caches)
    check_tensor("pairs", pairs, ("pairs", 2), (torch.int64,), caches[0].device, contiguous=True)
    check_ids("pairs", pairs, len(caches[0]))
    check_ids("pairs[:, 1]", pairs[:, 1], len(caches[0]), distinct=True)
    if bounds_are_checked(pairs) and torch.isin(pairs[:, 1], pairs[:, 0]).any():
        raise PagesimError("pairs holds a block that is both read and written; copies happen in no order")
    if use_triton(backend, caches[0]):
        from pagesim.kernels import blocks

        run_all([blocks.copy(caches, pairs)], pairs)
    else:
        reference.copy_blocks(caches, pairs)


def gather_blocks(
    caches: Sequence[Tensor], block_ids: Tensor, *, out: Tensor | None = None, backend: str = "auto"
) -> Tensor:
    """Copy blocks of several caches next to each other, in one launch: what a swap sends out in one piece.

    Args:
        caches: tensors of one shape whose first axis is the block.
        block_ids: int64 ``[ids]``.
        out: ``[ids, caches, *block]`` to write to; beside caches on a GPU it may be pinned host memory.
        backend: what does it.

    Returns:
        ``[ids, caches, *block]``: of each block its part in every cache.

    Raises:
        PagesimError: an argument is off.
    """
    caches = check_blocks(caches)
    shape = _staging_shape(caches, block_ids)
    if out is None:
        out = caches[0].new_empty(shape)
    _check_staging("out", out, shape, caches[0])
    if use_triton(backend, caches[0]):
        from pagesim.kernels import blocks

        run_all([blocks.gather(caches, block_ids, out)], block_ids)
    else:
        reference.gather_blocks(caches, block_ids, out)
    return out


def scatter_blocks(
    staging: Tensor, caches: Sequence[Tensor], block_ids: Tensor, *, backend: str = "auto"
) -> None:
    """Copy what ``gather_blocks`` gathered into blocks of several caches, in one launch.

    Args:
        staging: ``[ids, caches, *block]``; beside caches on a GPU it may be pinned host memory.
        caches: tensors of one shape whose first axis is the block.
        block_ids: int64 ``[ids]``, none twice.
        backend: what does it.

    Raises:
        PagesimError: an argument is off.
    """
    caches = check_blocks(caches)
    shape = _staging_shape(caches, block_ids)
    check_ids("block_ids", block_ids, len(caches[0]), distinct=True)
    _check_staging("staging", staging, shape, caches[0])
    if use_triton(backend, caches[0]):
        from pagesim.kernels import blocks

        run_all([blocks.scatter(staging, caches, block_ids)], block_ids)
    else:
        reference.scatter_blocks(staging, caches, block_ids)


def _staging_shape(caches: Sequence[Tensor], block_ids: Tensor) -> tuple[int, ...]:
    check_tensor("block_ids", block_ids, ("ids",), (torch.int64,), caches[0].device, contiguous=True)
    check_ids("block_ids", block_ids, len(caches[0]))
    return (len(block_ids), len(caches), *caches[0].shape[1:])


def _check_staging(name: str, staging: Tensor, shape: tuple[int, ...], cache: Tensor) -> None:
    reachable = (
        isinstance(staging, Tensor) and cache.is_cuda and staging.device.type == "cpu" and staging.is_pinned()
    )
    check_tensor(name, staging, shape, (cache.dtype,), None if reachable else cache.device, contiguous=True)

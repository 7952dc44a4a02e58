"""The cache write: stores new keys and values in their slots, in the cache's layout and type."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from pagesim.kernels.cache import Cache, LatentCache
from pagesim.kernels.launch import Launch

TOKENS = 16
"""Tokens per program: with vectors of 128 16-bit numbers, 4 KB each of keys and values."""


@triton.jit
def as_stored(x, scale, DTYPE: tl.constexpr, FP8: tl.constexpr):
    """Return vectors in the cache's type; FP8 is divided by its scale, kept within ±448 or NaN."""
    if FP8:
        x = tl.div_rn(x.to(tl.float32), scale)
        x = tl.maximum(x, -448.0, propagate_nan=tl.PropagateNan.ALL)
        x = tl.minimum(x, 448.0, propagate_nan=tl.PropagateNan.ALL)
    return x.to(DTYPE)


@triton.jit
def cache_write_kernel(
    K,  # [tokens, kv_heads, K_DIM]
    V,  # [tokens, kv_heads, V_DIM]
    K_cache,  # [blocks, BLOCK_SIZE, kv_heads, K_DIM], by its strides
    V_cache,  # [blocks, BLOCK_SIZE, kv_heads, V_DIM]
    slot_mapping,  # int64 [tokens]
    k_scale,  # if FP8 float32 [kv_heads]
    v_scale,  # if FP8 float32 [kv_heads]
    tokens,
    kv_heads,
    stride_k_block,
    stride_v_block,
    NEW_K_TOKEN: tl.constexpr,  # strides of K and V
    NEW_K_HEAD: tl.constexpr,
    NEW_V_TOKEN: tl.constexpr,
    NEW_V_HEAD: tl.constexpr,
    K_TOKEN: tl.constexpr,  # strides of the caches
    K_HEAD: tl.constexpr,
    V_TOKEN: tl.constexpr,
    V_HEAD: tl.constexpr,
    K_DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    K_PADDED: tl.constexpr,
    V_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    FP8: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Write one KV head of a few tokens; a negative slot is passed over."""
    # Heads first: neighbouring programs write neighbouring vectors of the same tokens.
    head = (tl.program_id(0) % kv_heads).to(tl.int64)
    token = tl.program_id(0) // kv_heads * TOKENS + tl.arange(0, TOKENS)  # [TOKENS]
    slot = tl.load(slot_mapping + token, mask=token < tokens, other=-1)  # [TOKENS]
    is_kept = (slot >= 0)[:, None]
    block = slot // BLOCK_SIZE  # int64, as what a block stride is multiplied by must be
    offset = slot % BLOCK_SIZE
    row = token.to(tl.int64)
    k_factor = 1.0
    v_factor = 1.0
    if FP8:
        k_factor = tl.load(k_scale + head)
        v_factor = tl.load(v_scale + head)

    k_dim = tl.arange(0, K_PADDED)[None, :]
    k_mask = is_kept & (k_dim < K_DIM)  # [TOKENS, K_DIM]
    k_from = K + (row * NEW_K_TOKEN + head * NEW_K_HEAD)[:, None] + k_dim
    k_to = K_cache + (block * stride_k_block + offset * K_TOKEN + head * K_HEAD)[:, None] + k_dim
    v_dim = tl.arange(0, V_PADDED)[None, :]
    v_mask = is_kept & (v_dim < V_DIM)  # [TOKENS, V_DIM]
    v_from = V + (row * NEW_V_TOKEN + head * NEW_V_HEAD)[:, None] + v_dim
    v_to = V_cache + (block * stride_v_block + offset * V_TOKEN + head * V_HEAD)[:, None] + v_dim
    new_k = tl.load(k_from, mask=k_mask, other=0.0)
    new_v = tl.load(v_from, mask=v_mask, other=0.0)
    tl.store(k_to, as_stored(new_k, k_factor, K_cache.dtype.element_ty, FP8), mask=k_mask)
    tl.store(v_to, as_stored(new_v, v_factor, V_cache.dtype.element_ty, FP8), mask=v_mask)


def launch(key: Tensor, value: Tensor, cache: Cache | LatentCache, slot_mapping: Tensor) -> Launch:
    """Return a launch that writes new tokens.

    Args:
        key: ``[tokens, kv_heads, D]``; for latents ``[tokens, latent_dim]``.
        value: like ``key``; for latents the rotated part, ``[tokens, rope_dim]``.
        cache: cache to write to.
        slot_mapping: int64 ``[tokens]``.
    """
    if isinstance(cache, LatentCache):
        key, value = key[:, None], value[:, None]
        whole, width = cache.cache[:, :, None], cache.latent_dim
        keys, values, place = whole[..., :width], whole[..., width:], {}
    else:
        keys, values, place = cache.keys, cache.values, cache.arguments
    tokens, kv_heads, _ = key.shape
    arguments: dict[str, Any] = {
        "K": key,
        "V": value,
        "K_cache": keys,
        "V_cache": values,
        "slot_mapping": slot_mapping,
        "k_scale": place.get("k_scale", keys),
        "v_scale": place.get("v_scale", keys),
        "tokens": tokens,
        "kv_heads": kv_heads,
        "stride_k_block": keys.stride(0),
        "stride_v_block": values.stride(0),
        "NEW_K_TOKEN": key.stride(0),
        "NEW_K_HEAD": key.stride(1),
        "NEW_V_TOKEN": value.stride(0),
        "NEW_V_HEAD": value.stride(1),
        "K_TOKEN": keys.stride(1),
        "K_HEAD": keys.stride(2),
        "V_TOKEN": values.stride(1),
        "V_HEAD": values.stride(2),
        "K_DIM": keys.shape[3],
        "V_DIM": values.shape[3],
        "K_PADDED": triton.next_power_of_2(keys.shape[3]),
        "V_PADDED": triton.next_power_of_2(values.shape[3]),
        "BLOCK_SIZE": cache.sizes.block_size,
        "FP8": place.get("FP8", False),
        "TOKENS": TOKENS,
    }
    return Launch(cache_write_kernel, lambda _: (kv_heads * -(-tokens // TOKENS),), arguments)

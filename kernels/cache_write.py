"""Fused reshape-and-cache: new keys and values go to their slots, in the cache's layout and type."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from pagesim.kernels.cache import Cache, by_eight
from pagesim.kernels.launch import Launch
from pagesim.kernels.tiles import in_vector, strided

TOKENS = 16
"""Tokens a program: with vectors of 128 numbers in 16 bits 4 KB each of keys and values."""


@triton.jit
def as_stored(new, factor, DTYPE: tl.constexpr, SCALED: tl.constexpr):
    """Return vectors in the cache's type; FP8 is divided by its scale, kept within ±448 or NaN."""
    if SCALED:
        new = tl.div_rn(new.to(tl.float32), factor)
        new = tl.maximum(new, -448.0, propagate_nan=tl.PropagateNan.ALL)
        new = tl.minimum(new, 448.0, propagate_nan=tl.PropagateNan.ALL)
    return new.to(DTYPE)


@triton.jit
def token_scales(new, TOKEN_MAX: tl.constexpr):
    """Return the scale of each vector ``[TOKENS]``: its largest number is stored as TOKEN_MAX.

    At least 2⁻¹²⁶, so that zeros are stored as zeros; NaN for a vector that holds NaN or infinity.
    """
    size = tl.abs(new.to(tl.float32))
    scale = tl.maximum(tl.div_rn(tl.max(size, axis=1), TOKEN_MAX * 1.0), 2.0**-126)
    infinite = tl.max((~(size < float("inf"))).to(tl.int32), axis=1)
    return tl.where(infinite > 0, float("nan"), scale)


@triton.jit
def over_scales(new, scales, DTYPE: tl.constexpr):
    """Return vectors divided by their scales: int8 to the nearest, ties to even; 0 where a scale is NaN."""
    new = tl.div_rn(new.to(tl.float32), scales[:, None])
    new = tl.where((scales == scales)[:, None], new, 0.0)
    if tl.int8 == DTYPE:
        new = new + 12582912.0 - 12582912.0  # 1.5 · 2²³: there float32 has whole numbers only
        return new.to(tl.int32).to(DTYPE)
    else:
        return tl.minimum(tl.maximum(new, -448.0), 448.0).to(DTYPE)


@triton.jit
def write_kernel(
    key,  # [tokens, kv_heads, HEAD_DIM]
    value,
    key_cache,  # blocks in the cache's layout
    value_cache,
    slot_mapping,  # int64 [tokens]
    k_scales,  # HEAD_SCALES: float32 [kv_heads]; TOKEN_MAX: float32 [blocks, kv_heads, BLOCK_SIZE], written
    v_scales,
    k_scale,
    v_scale,
    tokens,
    kv_heads,
    stride_key_token,
    stride_key_head,
    stride_value_token,
    stride_value_head,
    stride_k_block,
    stride_k_head,
    stride_v_block,
    stride_v_head,
    stride_s_block,
    stride_s_head,
    K_TOKEN: tl.constexpr,
    K_CHUNK: tl.constexpr,
    K_LANES: tl.constexpr,
    V_TOKEN: tl.constexpr,
    V_CHUNK: tl.constexpr,
    V_LANES: tl.constexpr,
    BY_EIGHT: tl.constexpr,  # of the cache
    NEW_BY_EIGHT: tl.constexpr,  # of key and value
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TOKENS: tl.constexpr,
    SCALED: tl.constexpr,
    HEAD_SCALES: tl.constexpr,
    TOKEN_MAX: tl.constexpr,  # the largest number stored, where every token and head has a scale; else 0
):
    """Write one KV head of a few tokens."""
    head = (tl.program_id(0) % kv_heads).to(tl.int64)
    # Heads first: neighbouring programs write neighbouring vectors of the same tokens.
    token = tl.program_id(0) // kv_heads * TOKENS + tl.arange(0, TOKENS)  # [TOKENS]
    dim = tl.arange(0, PADDED_DIM)
    slot = tl.load(slot_mapping + token, mask=token < tokens, other=-1)  # [TOKENS]
    # A slot of -1 keeps nothing, as of tokens beyond the last; its block and offset are not used.
    mask = (slot >= 0)[:, None] & (dim < HEAD_DIM)[None, :]  # [TOKENS, D]
    if HEAD_SCALES:
        k_scale = tl.load(k_scales + head)
        v_scale = tl.load(v_scales + head)
    row = token.to(tl.int64)[:, None]
    from_key = key + row * stride_key_token + strided(head, stride_key_head, NEW_BY_EIGHT) + dim[None, :]
    from_value = value + row * stride_value_token + strided(head, stride_value_head, NEW_BY_EIGHT)
    from_value += dim[None, :]
    block = (slot // BLOCK_SIZE)[:, None]  # int64, as what a block stride is multiplied by must be
    offset = (slot % BLOCK_SIZE)[:, None]
    to_key = key_cache + block * stride_k_block + strided(head, stride_k_head, BY_EIGHT)
    to_value = value_cache + block * stride_v_block + strided(head, stride_v_head, BY_EIGHT)
    to_key += offset * K_TOKEN + in_vector(dim, K_CHUNK, K_LANES)[None, :]
    to_value += offset * V_TOKEN + in_vector(dim, V_CHUNK, V_LANES)[None, :]
    new_key = tl.load(from_key, mask=mask, other=0.0)  # [TOKENS, D]
    new_value = tl.load(from_value, mask=mask, other=0.0)  # [TOKENS, D]
    if TOKEN_MAX:
        of_keys = token_scales(new_key, TOKEN_MAX)
        of_values = token_scales(new_value, TOKEN_MAX)
        at = slot // BLOCK_SIZE * stride_s_block + head * stride_s_head + slot % BLOCK_SIZE
        tl.store(k_scales + at, of_keys, mask=slot >= 0)
        tl.store(v_scales + at, of_values, mask=slot >= 0)
        tl.store(to_key, over_scales(new_key, of_keys, key_cache.dtype.element_ty), mask=mask)
        tl.store(to_value, over_scales(new_value, of_values, value_cache.dtype.element_ty), mask=mask)
        return
    tl.store(to_key, as_stored(new_key, k_scale, key_cache.dtype.element_ty, SCALED), mask=mask)
    tl.store(to_value, as_stored(new_value, v_scale, value_cache.dtype.element_ty, SCALED), mask=mask)


def launch(key: Tensor, value: Tensor, cache: Cache, slot_mapping: Tensor) -> Launch:
    """Return what is to be run."""
    tokens, kv_heads, _ = key.shape
    arguments = {
        **cache.place,
        **cache.factors,
        "key": key,
        "value": value,
        "slot_mapping": slot_mapping,
        "k_scale": 1.0 if isinstance(cache.k_scale, Tensor) else float(cache.k_scale),
        "tokens": tokens,
        "kv_heads": kv_heads,
        "stride_key_token": key.stride(0),
        "stride_key_head": key.stride(1),
        "stride_value_token": value.stride(0),
        "stride_value_head": value.stride(1),
        "NEW_BY_EIGHT": key.shape[-1] % 16 > 0 and by_eight(key.stride(1), value.stride(1)),
        "TOKENS": TOKENS,
        "SCALED": cache.is_fp8,
    }
    return Launch(write_kernel, (kv_heads * -(-tokens // TOKENS),), arguments)

"""Fused reshape-and-cache: new keys and values go to their slots, in the cache's layout and type."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from pagesim.kernels.cache import Cache
from pagesim.kernels.launch import Launch
from pagesim.kernels.tiles import in_vector

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
def write_kernel(
    key,  # [tokens, kv_heads, HEAD_DIM]
    value,
    key_cache,  # blocks in the cache's layout
    value_cache,
    slot_mapping,  # int64 [tokens]
    k_scales,  # HEAD_SCALES: float32 [kv_heads]
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
    K_TOKEN: tl.constexpr,
    K_CHUNK: tl.constexpr,
    K_LANES: tl.constexpr,
    V_TOKEN: tl.constexpr,
    V_CHUNK: tl.constexpr,
    V_LANES: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TOKENS: tl.constexpr,
    SCALED: tl.constexpr,
    HEAD_SCALES: tl.constexpr,
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
    from_key = key + row * stride_key_token + head * stride_key_head + dim[None, :]
    from_value = value + row * stride_value_token + head * stride_value_head + dim[None, :]
    block = (slot // BLOCK_SIZE)[:, None]  # int64, as what a block stride is multiplied by must be
    offset = (slot % BLOCK_SIZE)[:, None]
    to_key = key_cache + block * stride_k_block + head * stride_k_head
    to_value = value_cache + block * stride_v_block + head * stride_v_head
    to_key += offset * K_TOKEN + in_vector(dim, K_CHUNK, K_LANES)[None, :]
    to_value += offset * V_TOKEN + in_vector(dim, V_CHUNK, V_LANES)[None, :]
    new_key = tl.load(from_key, mask=mask)  # [TOKENS, D]
    new_value = tl.load(from_value, mask=mask)  # [TOKENS, D]
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
        "k_scale": 1.0 if cache.has_head_scales else float(cache.k_scale),
        "tokens": tokens,
        "kv_heads": kv_heads,
        "stride_key_token": key.stride(0),
        "stride_key_head": key.stride(1),
        "stride_value_token": value.stride(0),
        "stride_value_head": value.stride(1),
        "TOKENS": TOKENS,
        "SCALED": cache.is_fp8,
    }
    return Launch(write_kernel, (kv_heads * -(-tokens // TOKENS),), arguments)

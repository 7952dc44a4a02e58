"""Paged contexts copied into a padded contiguous batch: what attention without a paged kernel needs."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from pagesim.kernels.cache import Cache, by_eight
from pagesim.kernels.launch import Launch
from pagesim.kernels.tiles import in_vector, strided

TOKENS = 32
"""Tokens a program."""


@triton.jit
def gather_kernel(
    key_cache,  # blocks in the cache's layout
    value_cache,
    block_table,  # int32 [batch, max_blocks]
    context_lens,  # int32 [batch]
    key,  # [batch, max_context, kv_heads, HEAD_DIM]
    value,
    k_scales,  # TOKEN_SCALES: float32 [blocks, kv_heads, BLOCK_SIZE]
    v_scales,
    key_scales,  # TOKEN_SCALES: float32 [batch, kv_heads, max_context]
    value_scales,
    stride_table,
    stride_k_block,
    stride_k_head,
    stride_v_block,
    stride_v_head,
    stride_key_row,
    stride_key_token,
    stride_key_head,
    stride_value_row,
    stride_value_token,
    stride_value_head,
    stride_s_block,
    stride_s_head,
    stride_to_row,
    stride_to_head,
    K_TOKEN: tl.constexpr,
    K_CHUNK: tl.constexpr,
    K_LANES: tl.constexpr,
    V_TOKEN: tl.constexpr,
    V_CHUNK: tl.constexpr,
    V_LANES: tl.constexpr,
    BY_EIGHT: tl.constexpr,  # of the cache
    TO_BY_EIGHT: tl.constexpr,  # of key and value
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TOKENS: tl.constexpr,
    TOKEN_SCALES: tl.constexpr,
):
    """Copy one KV head of a few tokens of one sequence."""
    head = tl.program_id(0).to(tl.int64)
    row = tl.program_id(2).to(tl.int64)
    length = tl.load(context_lens + row)
    token = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)  # [TOKENS]
    # What lies beyond a context is never read (``contiguous_decode_attention``), so it is not written either.
    if tl.program_id(1) * TOKENS >= length:
        return
    dim = tl.arange(0, PADDED_DIM)
    inside = token < length
    mask = inside[:, None] & (dim < HEAD_DIM)[None, :]  # [TOKENS, D]
    ids = tl.load(block_table + row * stride_table + token // BLOCK_SIZE, mask=inside, other=0)  # [TOKENS]
    block = ids.to(tl.int64)[:, None]
    offset = (token % BLOCK_SIZE)[:, None]
    from_key = key_cache + block * stride_k_block + strided(head, stride_k_head, BY_EIGHT)
    from_value = value_cache + block * stride_v_block + strided(head, stride_v_head, BY_EIGHT)
    from_key += offset * K_TOKEN + in_vector(dim, K_CHUNK, K_LANES)[None, :]
    from_value += offset * V_TOKEN + in_vector(dim, V_CHUNK, V_LANES)[None, :]
    place = token.to(tl.int64)[:, None]
    to_key = key + row * stride_key_row + place * stride_key_token
    to_key += strided(head, stride_key_head, TO_BY_EIGHT) + dim[None, :]
    to_value = value + row * stride_value_row + place * stride_value_token
    to_value += strided(head, stride_value_head, TO_BY_EIGHT) + dim[None, :]
    keys = tl.load(from_key, mask=mask)  # [TOKENS, D]
    values = tl.load(from_value, mask=mask)  # [TOKENS, D]
    tl.store(to_key, keys, mask=mask)
    tl.store(to_value, values, mask=mask)
    if TOKEN_SCALES:
        source = ids.to(tl.int64) * stride_s_block + head * stride_s_head + token % BLOCK_SIZE
        target = row * stride_to_row + head * stride_to_head + token
        tl.store(key_scales + target, tl.load(k_scales + source, mask=inside), mask=inside)
        tl.store(value_scales + target, tl.load(v_scales + source, mask=inside), mask=inside)


def launch(cache: Cache, block_table: Tensor, context_lens: Tensor, padded: Cache) -> Launch:
    """Return what copies contexts from a paged cache to a padded one in layout NHD."""
    key, value = padded.key_cache, padded.value_cache
    batch, max_context, kv_heads, _ = key.shape
    source, target = cache.factors, padded.factors
    arguments = {
        **cache.place,
        "block_table": block_table,
        "context_lens": context_lens,
        "key": key,
        "value": value,
        "stride_table": block_table.stride(0),
        "stride_key_row": key.stride(0),
        "stride_key_token": key.stride(1),
        "stride_key_head": key.stride(2),
        "stride_value_row": value.stride(0),
        "stride_value_token": value.stride(1),
        "stride_value_head": value.stride(2),
        **{name: source[name] for name in ("k_scales", "v_scales", "stride_s_block", "stride_s_head")},
        "key_scales": target["k_scales"],
        "value_scales": target["v_scales"],
        "stride_to_row": target["stride_s_block"],
        "stride_to_head": target["stride_s_head"],
        "TO_BY_EIGHT": key.shape[-1] % 16 > 0 and by_eight(key.stride(2), value.stride(2)),
        "TOKENS": TOKENS,
        "TOKEN_SCALES": cache.has_token_scales,
    }
    return Launch(gather_kernel, (kv_heads, -(-max_context // TOKENS), batch), arguments)

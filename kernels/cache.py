"""What kernels read and write, checked once: caches with their layout and scales, and block pools.

A check in Python takes as long as a small kernel. So whatever holds for the lifetime of a cache is checked
when the object is created, and every launch reuses the arguments prepared then.

| layout | key cache and value cache |
|---|---|
| ``NHD`` | ``[blocks, block_size, kv_heads, D]`` |
| ``HND`` | ``[blocks, kv_heads, block_size, D]`` |

The names are FlashInfer's. The block is the first axis, so that copies and swaps move whole blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pagesim.errors import PagesimError
from pagesim.kernels.checks import FP8, QUERY_DTYPES, check_blocks, check_fp8, check_scale, check_tensor

LAYOUTS = ("NHD", "HND")

HEAD_DIMS = (32, 64, 72, 80, 96, 112, 120, 128, 160, 192, 256, 512)

LATENT_DIMS = (256, 512)
ROPE_DIMS = (32, 64)


class Sizes(NamedTuple):
    """Size of a cache: blocks of ``block_size`` token slots, with one vector of D elements per KV head."""

    num_blocks: int
    block_size: int
    kv_heads: int
    head_dim: int

    def shape(self, layout: str = "NHD") -> tuple[int, int, int, int]:
        """Return the shape of a key cache or value cache in a layout."""
        blocks, block_size, kv_heads, head_dim = self
        inner = (kv_heads, block_size) if layout == "HND" else (block_size, kv_heads)
        return (blocks, *inner, head_dim)


class Cache:
    """Keys and values of one layer, with their memory layout and the scales of FP8 values.

    A contiguous batch is a cache whose blocks are whole sequences: ``[batch, max_context, kv_heads, D]`` with
    the block table ``[[0], [1], …]``.

    Args:
        key_cache: blocks of keys in ``layout``; float16, bfloat16, float32 or FP8 (e4m3).
        value_cache: blocks of values in ``layout``, of the same type.
        layout: ``NHD`` or ``HND``.
        k_scale: factor for stored FP8 keys: one number, or float32 ``[kv_heads]``.
        v_scale: factor for stored FP8 values: one number, or float32 ``[kv_heads]``.

    Attributes:
        sizes: blocks, tokens per block, KV heads, elements per vector.
        keys: the key cache as ``[blocks, block_size, kv_heads, D]``, a view.
        values: the value cache as ``[blocks, block_size, kv_heads, D]``, a view.
        arguments: kernel arguments that locate the elements.

    Raises:
        PagesimError: tensors, layout and scales do not match.
    """

    def __init__(
        self,
        key_cache: Tensor,
        value_cache: Tensor,
        *,
        layout: str = "NHD",
        k_scale: float | Tensor = 1.0,
        v_scale: float | Tensor = 1.0,
    ) -> None:
        if layout not in LAYOUTS:
            raise PagesimError(f"layout is {layout!r}; it must be one of {', '.join(LAYOUTS)}")
        axes = ("blocks", *(("kv_heads", "block_size") if layout == "HND" else ("block_size", "kv_heads")))
        check_tensor("key_cache", key_cache, (*axes, "D"), (*QUERY_DTYPES, FP8))
        shape = tuple(key_cache.shape)
        check_tensor("value_cache", value_cache, shape, (key_cache.dtype,), key_cache.device)
        self.layout, self.key_cache, self.value_cache = layout, key_cache, value_cache
        self.keys, self.values = (
            each.transpose(1, 2) if layout == "HND" else each for each in (key_cache, value_cache)
        )
        self.sizes = Sizes(*self.keys.shape)
        if self.sizes.head_dim not in HEAD_DIMS:
            allowed = ", ".join(map(str, HEAD_DIMS))
            raise PagesimError(f"key_cache has head size {self.sizes.head_dim}; one of {allowed} is needed")
        if not self.sizes.kv_heads or not self.sizes.block_size:
            raise PagesimError(
                f"key_cache has the shape {list(shape)}; at least one token and head is needed"
            )
        check_fp8("key_cache", key_cache)
        self.device, self.dtype, self.is_fp8 = key_cache.device, key_cache.dtype, key_cache.dtype == FP8
        for name, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
            check_scale(name, scale, self.sizes.kv_heads, key_cache)
        self.k_scale, self.v_scale = k_scale, v_scale

    @cached_property
    def arguments(self) -> dict[str, Any]:
        keys, values, head_dim = self.keys, self.values, self.sizes.head_dim
        return {
            "K_cache": self.key_cache,
            "V_cache": self.value_cache,
            # Kernels need valid pointers even where they do not read them.
            "k_scale": self._per_head(self.k_scale) if self.is_fp8 else self.key_cache,
            "v_scale": self._per_head(self.v_scale) if self.is_fp8 else self.key_cache,
            "stride_k_block": keys.stride(0),
            "stride_v_block": values.stride(0),
            "K_TOKEN": keys.stride(1),
            "K_HEAD": keys.stride(2),
            "V_TOKEN": values.stride(1),
            "V_HEAD": values.stride(2),
            "HEAD_DIM": head_dim,
            "PADDED_DIM": 1 << (head_dim - 1).bit_length(),
            "BLOCK_SIZE": self.sizes.block_size,
            "FP8": self.is_fp8,
        }

    def _per_head(self, scale: float | Tensor) -> Tensor:
        if isinstance(scale, Tensor):
            return scale
        return torch.full((self.sizes.kv_heads,), float(scale), device=self.device)


class LatentCache:
    """Latents of one layer (MLA), each followed by the rotated part of its token's key.

    Args:
        cache: ``[blocks, block_size, latent_dim + rope_dim]``; float16, bfloat16 or float32.
        latent_dim: number of latents per token, which are also its value: 512 in DeepSeek-V2, V3 and
            Kimi K2, 256 in MiniCPM3. The remaining 64 or 32 numbers are the rotated part.

    Attributes:
        sizes: blocks, tokens per block, one KV head, numbers per token.
        rope_dim: numbers per token besides the latents.
        arguments: kernel arguments that locate the numbers.

    Raises:
        PagesimError: the tensor is invalid, or there are no kernels for such vectors.
    """

    def __init__(self, cache: Tensor, *, latent_dim: int = 512) -> None:
        check_tensor("cache", cache, ("blocks", "block_size", "latent_dim + rope_dim"), QUERY_DTYPES)
        blocks, block_size, width = cache.shape
        if latent_dim not in LATENT_DIMS:
            raise PagesimError(f"latent_dim is {latent_dim}; 256 or 512 is needed")
        if width - latent_dim not in ROPE_DIMS:
            raise PagesimError(
                f"cache has {width} numbers a token, {width - latent_dim} beside latent_dim {latent_dim};"
                " 32 or 64 are needed"
            )
        if not block_size:
            raise PagesimError(f"cache has the shape {list(cache.shape)}; at least one token is needed")
        self.cache, self.latent_dim, self.rope_dim = cache, latent_dim, width - latent_dim
        self.sizes = Sizes(blocks, block_size, 1, width)
        self.device, self.dtype = cache.device, cache.dtype

    @cached_property
    def arguments(self) -> dict[str, Any]:
        return {
            "cache": self.cache,
            "stride_block": self.cache.stride(0),
            "TOKEN": self.cache.stride(1),
            "LATENT": self.latent_dim,
            "ROPE": self.rope_dim,
            "BLOCK_SIZE": self.sizes.block_size,
        }


class BlockPool:
    """Tensors of one shape whose blocks (first axis) are moved together: keys and values of all layers.

    Args:
        caches: tensors of any layout; each block is contiguous and starts at a multiple of 16 bytes.

    Attributes:
        block: shape of a block in one tensor.
        words: 32-bit words of a block in one tensor.
        stride: words between the starts of two blocks.

    Raises:
        PagesimError: their shape, type, device or stride differs, or blocks are not contiguous.
    """

    def __init__(self, caches: Sequence[Tensor]) -> None:
        self.caches = check_blocks(caches)
        first = self.caches[0]
        self.device, self.dtype, self.is_cuda = first.device, first.dtype, first.is_cuda
        self.num_blocks = len(first)
        self.block = tuple(first.shape[1:])
        self.words = prod(self.block) * first.element_size() // 4
        self.stride = first.stride(0) * first.element_size() // 4

    def __len__(self) -> int:
        return len(self.caches)

    @cached_property
    def addresses(self) -> Tensor:
        """The tensors' start addresses, int64 ``[caches]`` on their device."""
        return torch.tensor([cache.data_ptr() for cache in self.caches], device=self.device)

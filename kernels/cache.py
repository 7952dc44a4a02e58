"""What kernels read and write, checked once: caches with layout and scales, pools of blocks.

A check in Python takes as long as a small kernel. So what holds for a cache as long as it lives is checked
when the object is made, and every launch takes the list of arguments that was made then.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor

from pagesim.errors import PagesimError
from pagesim.kernels.checks import FP8, check_blocks, check_caches, check_scales
from pagesim.kernels.layouts import NHD, Layout, Sizes, find_layout

TOKEN_MAX = {torch.int8: 127, FP8: 448}
"""What the largest number of a vector is stored as, where every token and head has a scale."""

LOG2_E = 1.4426950408889634


class Cache:
    """Keys and values of one layer, how they lie in memory and what their numbers are multiplied by.

    Args:
        key_cache: blocks of keys in ``layout``; float16, bfloat16, float32, FP8 (e4m3) or int8.
        value_cache: blocks of values in ``layout``, of the same type.
        layout: a name or one of ``LAYOUTS``.
        k_scale: what a stored FP8 key is multiplied by: one factor, or float32 ``[kv_heads]``. As float32
            ``[blocks, kv_heads, block_size]`` it is the scale of each token and head, of int8 or FP8, which
            the cache write computes: the largest of a vector is stored as 127 or 448 (``token_scaled``).
        v_scale: the same of values.
        paged: False for a padded contiguous batch, in which each sequence is one block of its own:
            ``[batch, max_context, kv_heads, D]`` in layout NHD, ``[batch, kv_heads, max_context, D]`` in HND.

    Attributes:
        sizes: blocks, tokens a block, KV heads, elements of a vector.
        place: where elements are, as kernels take it: both tensors, strides and sizes by parameter.
        factors: the scales, as kernels that read take them.
        has_token_scales: whether every token and head has a scale.

    Raises:
        PagesimError: tensors, layout and scales do not fit together.
    """

    def __init__(
        self,
        key_cache: Tensor,
        value_cache: Tensor,
        *,
        layout: str | Layout = NHD,
        k_scale: float | Tensor = 1.0,
        v_scale: float | Tensor = 1.0,
        paged: bool = True,
    ) -> None:
        self.layout = find_layout(layout)
        if not paged and self.layout.key.chunk_bytes is not None:
            raise PagesimError(f"layout is {self.layout.name}; a contiguous cache is NHD or HND")
        self.sizes = check_caches(key_cache, value_cache, self.layout, paged=paged)
        check_scales(k_scale, v_scale, self.sizes, key_cache)
        self.key_cache = key_cache
        self.value_cache = value_cache
        self.k_scale = k_scale
        self.v_scale = v_scale
        self.paged = paged
        self.device = key_cache.device
        self.dtype = key_cache.dtype
        self.is_fp8 = key_cache.dtype == FP8
        self.has_token_scales = isinstance(k_scale, Tensor) and k_scale.dim() == 3
        self.has_head_scales = not self.has_token_scales and (
            isinstance(k_scale, Tensor) or isinstance(v_scale, Tensor)
        )

    @property
    def as_stored(self) -> dict[str, Any]:
        """Layout and scales, as the references take them."""
        return {"layout": self.layout, "k_scale": self.k_scale, "v_scale": self.v_scale}

    @cached_property
    def place(self) -> dict[str, Any]:
        keys = self.layout.key.strides(self.key_cache)
        values = self.layout.value.strides(self.value_cache)
        head_dim = self.sizes.head_dim
        return {
            "key_cache": self.key_cache,
            "value_cache": self.value_cache,
            "stride_k_block": keys.block,
            "stride_k_head": keys.head,
            "stride_v_block": values.block,
            "stride_v_head": values.head,
            "K_TOKEN": keys.token,
            "K_CHUNK": keys.chunk,
            "K_LANES": keys.lanes,
            "V_TOKEN": values.token,
            "V_CHUNK": values.chunk,
            "V_LANES": values.lanes,
            "BY_EIGHT": by_eight(keys.head, values.head),
            "HEAD_DIM": head_dim,
            "PADDED_DIM": 1 << (head_dim - 1).bit_length(),
            "BLOCK_SIZE": self.sizes.block_size if self.paged else 0,
        }

    @cached_property
    def pairs(self) -> dict[str, Any] | None:
        """``place`` of bytes, keys as int8 and values as int16, a pair each; None if there are no pairs."""
        place, cache = self.place, self.value_cache
        if self.dtype.itemsize > 1 or place["V_CHUNK"]:
            return None
        if cache.data_ptr() % 2 or any(stride % 2 for stride in cache.stride()[:-1]):
            return None
        views = {"key_cache": self.key_cache.view(torch.int8), "value_cache": cache.view(torch.int16)}
        return {**place, **views}

    @cached_property
    def factors(self) -> dict[str, Any]:
        # Of pointers that are not read there must be some.
        k_scales: Tensor = self.key_cache
        v_scales: Tensor = self.key_cache
        token_max, strides = 0, (0, 0)
        v_scale = 1.0
        if self.has_token_scales:
            assert isinstance(self.k_scale, Tensor)
            assert isinstance(self.v_scale, Tensor)
            k_scales, v_scales = self.k_scale, self.v_scale
            token_max, strides = TOKEN_MAX[self.dtype], (k_scales.stride(0), k_scales.stride(1))
            v_scale = 1 / token_max
        elif self.has_head_scales:
            k_scales, v_scales = self._per_head(self.k_scale), self._per_head(self.v_scale)
        else:
            v_scale = float(self.v_scale)
        return {
            "k_scales": k_scales,
            "v_scales": v_scales,
            "v_scale": v_scale,
            "stride_s_block": strides[0],
            "stride_s_head": strides[1],
            "HEAD_SCALES": self.has_head_scales,
            "TOKEN_MAX": token_max,
        }

    def score_scale(self, scale: float | None) -> float:
        """Return what scores are multiplied by, in base 2; that of single heads' keys left out.

        Args:
            scale: of the dot products; 1/√D if None.
        """
        factor = self.sizes.head_dim**-0.5 if scale is None else float(scale)
        single = not (self.has_head_scales or self.has_token_scales)
        return factor * LOG2_E * (float(self.k_scale) if single else 1.0)

    @cached_property
    def _default_scale(self) -> float:
        return self.score_scale(None)

    def upright(self, q: Tensor, scale: float | None) -> tuple[Tensor, float]:
        """Return queries, and a positive scale, whose scores are those of queries and scale as given.

        So the highest product of a query and a key has the highest score. With a scale of 0 all keys have the
        same weight; with one of 10⁻³⁰ they have, too, and a masked score stays minus infinity.

        Args:
            q: queries of any shape.
            scale: of the dot products; 1/√D if None.
        """
        factor = self._default_scale if scale is None else self.score_scale(scale)
        return (-q if factor < 0 else q), max(abs(factor), 1e-30)

    def _per_head(self, factor: float | Tensor) -> Tensor:
        if isinstance(factor, Tensor):
            return factor
        return torch.full((self.sizes.kv_heads,), factor, device=self.device)


def token_scaled(
    sizes: Sizes, dtype: torch.dtype, *, layout: str | Layout = NHD, device: torch.device | str = "cpu"
) -> tuple[Cache, list[Tensor]]:
    """Make an empty cache with a scale a token and head, in whose blocks the scales lie behind the numbers.

    The scales of a block move with it: the two tensors of blocks are what ``BlockPool`` and swaps take.

    Args:
        sizes: of the cache.
        dtype: torch.int8 or torch.float8_e4m3fn.
        layout: of keys and values.
        device: where it is.

    Returns:
        The cache, and its keys' and its values' blocks as uint8 ``[blocks, bytes]``, bytes a multiple of 16.

    Raises:
        PagesimError: sizes, type or layout are off.
    """
    if dtype not in TOKEN_MAX:
        raise PagesimError(f"dtype is {dtype}; torch.int8 or torch.float8_e4m3fn is needed")
    layout = find_layout(layout)
    shape = (sizes.num_blocks, sizes.kv_heads, sizes.block_size)
    numbers = prod(sizes[1:])
    end = numbers + 4 * prod(shape[1:])
    views, blocks = [], []
    for storage in (layout.key, layout.value):
        whole = torch.zeros(sizes.num_blocks, -(-end // 16) * 16, dtype=torch.uint8, device=device)
        cache = whole[:, :numbers].view(dtype).view(storage.shape(sizes, 1))
        views.append((cache, whole[:, numbers:end].view(torch.float32).view(shape)))
        blocks.append(whole)
    (keys, k_scale), (values, v_scale) = views
    return Cache(keys, values, layout=layout, k_scale=k_scale, v_scale=v_scale), blocks


class BlockPool:
    """Tensors of one shape whose blocks, the first axis, are moved together: keys and values of all layers.

    Args:
        caches: of any layout; each block lies in one piece and at a multiple of 16 bytes.

    Attributes:
        block: the shape of a block in one of them.
        words: 32-bit words of a block in one of them.
        stride: words between two blocks.

    Raises:
        PagesimError: they do not have one shape, type, device and stride, or blocks in pieces.
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
        """Where each of them begins, int64 ``[caches]`` on their device."""
        return torch.tensor([cache.data_ptr() for cache in self.caches], device=self.device)


def by_eight(*strides: int) -> bool:
    """Return whether strides are multiples of 8 that Triton, which looks for those of 16, would not see.

    Heads of 72 or 120 numbers of 16 bits begin at multiples of 16 bytes.
    """
    return not any(stride % 8 for stride in strides) and any(stride % 16 for stride in strides)


def pool_of(caches: BlockPool | Sequence[Tensor]) -> BlockPool:
    """Return a pool of these caches, checked here unless it is one already."""
    return caches if isinstance(caches, BlockPool) else BlockPool(caches)

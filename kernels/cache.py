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
from pagesim.kernels.checks import FP8, check_blocks, check_caches, check_scale
from pagesim.kernels.layouts import NHD, Layout, find_layout

LOG2_E = 1.4426950408889634


class Cache:
    """Keys and values of one layer, how they lie in memory and what their numbers are multiplied by.

    Args:
        key_cache: blocks of keys in ``layout``; float16, bfloat16, float32 or FP8 (e4m3).
        value_cache: blocks of values in ``layout``, of the same type.
        layout: a name or one of ``LAYOUTS``.
        k_scale: what a stored FP8 key is multiplied by, one factor or float32 ``[kv_heads]``.
        v_scale: the same of values.
        paged: False for a padded contiguous batch, in which each sequence is one block of its own:
            ``[batch, max_context, kv_heads, D]`` in layout NHD, ``[batch, kv_heads, max_context, D]`` in HND.

    Attributes:
        sizes: blocks, tokens a block, KV heads, elements of a vector.
        place: where elements are, as kernels take it: both tensors, strides and sizes by parameter.
        factors: the scales, as kernels that read take them.

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
        for name, factor in (("k_scale", k_scale), ("v_scale", v_scale)):
            check_scale(name, factor, self.sizes, key_cache)
        self.key_cache = key_cache
        self.value_cache = value_cache
        self.k_scale = k_scale
        self.v_scale = v_scale
        self.paged = paged
        self.device = key_cache.device
        self.dtype = key_cache.dtype
        self.is_fp8 = key_cache.dtype == FP8
        self.has_head_scales = isinstance(k_scale, Tensor) or isinstance(v_scale, Tensor)

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
            "HEAD_DIM": head_dim,
            "PADDED_DIM": 1 << (head_dim - 1).bit_length(),
            "BLOCK_SIZE": self.sizes.block_size if self.paged else 0,
        }

    @cached_property
    def pairs(self) -> dict[str, Any] | None:
        """``place`` of FP8, keys as int8 and values as int16, a pair each; None where there are no pairs."""
        place, cache = self.place, self.value_cache
        if not self.is_fp8 or place["V_CHUNK"]:
            return None
        if cache.data_ptr() % 2 or any(stride % 2 for stride in cache.stride()[:-1]):
            return None
        views = {"key_cache": self.key_cache.view(torch.int8), "value_cache": cache.view(torch.int16)}
        return {**place, **views}

    @cached_property
    def factors(self) -> dict[str, Any]:
        if self.has_head_scales:
            k_scales, v_scales = self._per_head(self.k_scale), self._per_head(self.v_scale)
            return {"k_scales": k_scales, "v_scales": v_scales, "v_scale": 1.0, "HEAD_SCALES": True}
        # Of pointers that are not read there must be some.
        unread = self.key_cache
        return {"k_scales": unread, "v_scales": unread, "v_scale": float(self.v_scale), "HEAD_SCALES": False}

    def score_scale(self, scale: float | None) -> float:
        """Return what scores are multiplied by, in base 2; that of single heads' keys left out.

        Args:
            scale: of the dot products; 1/√D if None.
        """
        factor = self.sizes.head_dim**-0.5 if scale is None else float(scale)
        return factor * LOG2_E * (1.0 if self.has_head_scales else float(self.k_scale))

    def upright(self, q: Tensor, scale: float | None) -> tuple[Tensor, float]:
        """Return queries, and a positive scale, whose scores are those of queries and scale as given.

        So the highest product of a query and a key has the highest score. With a scale of 0 all keys have the
        same weight; with one of 10⁻³⁰ they have, too, and a masked score stays minus infinity.

        Args:
            q: queries of any shape.
            scale: of the dot products; 1/√D if None.
        """
        factor = self.score_scale(scale)
        return (-q if factor < 0 else q), max(abs(factor), 1e-30)

    def _per_head(self, factor: float | Tensor) -> Tensor:
        if isinstance(factor, Tensor):
            return factor
        return torch.full((self.sizes.kv_heads,), factor, device=self.device)


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


def pool_of(caches: BlockPool | Sequence[Tensor]) -> BlockPool:
    """Return a pool of these caches, checked here unless it is one already."""
    return caches if isinstance(caches, BlockPool) else BlockPool(caches)

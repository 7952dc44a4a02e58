"""The paged cache of multi-head latent attention (MLA): a vector a token, key and value of all heads."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pagesim.errors import PagesimError
from pagesim.kernels.checks import QUERY_DTYPES, check_tensor
from pagesim.kernels.layouts import Sizes

LATENT_DIMS = (256, 512)
ROPE_DIMS = (32, 64)

TILE_BYTES = 64
"""Bytes of one number of each token of a tile: 32 tokens in 16 bits."""


class LatentCache:
    """Latents of one layer, each beside the rotated part of its token's key.

    Args:
        cache: ``[blocks, block_size, latent_dim + rope_dim]``; float16, bfloat16 or float32.
        latent_dim: how many of a token's numbers are latents, and so its value: 512 in DeepSeek-V2, V3 and
            Kimi K2, 256 in MiniCPM3. The others are the rotated part, 64 or 32 of them.

    Attributes:
        sizes: blocks, tokens a block, one KV head, numbers of a token.
        latent_dim: as given.
        rope_dim: the others.
        place: where numbers are, as kernels take it.

    Raises:
        PagesimError: the tensor is off, or there are no kernels for such vectors.
    """

    def __init__(self, cache: Tensor, *, latent_dim: int = 512) -> None:
        check_tensor("cache", cache, ("blocks", "block_size", "latent_dim + rope_dim"), QUERY_DTYPES)
        blocks, block_size, width = cache.shape
        if latent_dim not in LATENT_DIMS:
            raise PagesimError(f"latent_dim is {latent_dim}; one of {_list(LATENT_DIMS)} is needed")
        self.latent_dim, self.rope_dim = latent_dim, width - latent_dim
        if self.rope_dim not in ROPE_DIMS:
            raise PagesimError(
                f"cache has {width} numbers a token, {self.rope_dim} beside latent_dim {latent_dim}; one"
                f" of {_list(ROPE_DIMS)} is needed"
            )
        if not block_size:
            raise PagesimError(
                f"cache has the shape {list(cache.shape)}; at least one token a block is needed"
            )
        self.cache = cache
        self.sizes = Sizes(blocks, block_size, 1, width)
        self.device = cache.device
        self.dtype = cache.dtype

    @cached_property
    def place(self) -> dict[str, Any]:
        return {
            "cache": self.cache,
            "stride_block": self.cache.stride(0),
            "TOKEN": self.cache.stride(1),
            "LATENT": self.latent_dim,
            "ROPE": self.rope_dim,
            "BLOCK_SIZE": self.sizes.block_size,
        }


def head_rows(q_heads: int, dtype: torch.dtype) -> int:
    """Return how many query heads a program takes, as rows of a matrix: 32 at most, for more would spill."""
    if dtype == torch.float32:  # multiplied without tensor cores, a row a program
        return 1
    return 16 if q_heads <= 16 else 32


def _list(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values))

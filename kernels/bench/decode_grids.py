"""Grids of decode over what ``AttentionGrid`` has no room for: shared prefixes, and latents (MLA)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from pagesim.errors import PagesimError
from pagesim.kernels.bench.grids import WHOLE_DTYPES, AttentionGrid
from pagesim.kernels.bench.rows import Point

SHARED_OPS = ("shared-decode", "cascade-decode")
MLA_OP = "mla-decode"
LATENT_DIM, ROPE_DIM = 512, 64
"""Numbers of a token in DeepSeek-V2, V3 and Kimi K2."""


@dataclass(frozen=True)
class SharedPrefixGrid:
    """Decode of a batch whose sequences begin with the same blocks: plain, and with those read once.

    Args:
        shapes: (batch, context, tokens of it that are shared), the last a multiple of the block size.
        heads: (query heads, KV heads).
        block_size: tokens a block.
        head_size: 64, 80, 96, 128 or 256.
        dtype: of the cache.

    Raises:
        PagesimError: a value is off; the message names it and the bound.
    """

    shapes: tuple[tuple[int, int, int], ...]
    heads: tuple[tuple[int, int], ...] = ((32, 8),)
    block_size: int = 16
    head_size: int = 128
    dtype: str = "fp16"

    def __post_init__(self) -> None:
        AttentionGrid(
            shapes=tuple(shape[:2] for shape in self.shapes),
            heads=self.heads,
            block_sizes=(self.block_size,),
            head_sizes=(self.head_size,),
            dtypes=(self.dtype,),
        )
        for _, context, shared in self.shapes:
            if not self.block_size <= shared <= context or shared % self.block_size:
                raise PagesimError(
                    f"shared is {shared}; it must be a multiple of block_size, {self.block_size}, up to"
                    f" context, {context}"
                )

    def points(self) -> Iterator[Point]:
        """Yield the points, both ops of a shape in a row."""
        for (batch, context, shared), (q_heads, kv_heads) in product(self.shapes, self.heads):
            shape = {"batch": batch, "context": context, "shared": shared, "block_size": self.block_size}
            model = {"q_heads": q_heads, "kv_heads": kv_heads, "head_size": self.head_size}
            for op in SHARED_OPS:
                yield Point("attention", op, {**shape, **model, "dtype": self.dtype, "layout": "NHD"})


@dataclass(frozen=True)
class LatentGrid:
    """Decode over latents (MLA).

    Args:
        shapes: (batch, context) pairs.
        q_heads: query heads: 128 in DeepSeek-V3, 64 in Kimi K2, 16 in DeepSeek-V2-Lite.
        block_sizes: tokens a block.
        dtype: of queries and latents.

    Raises:
        PagesimError: a value is off; the message names it and the bound.
    """

    shapes: tuple[tuple[int, int], ...]
    q_heads: tuple[int, ...] = (128,)
    block_sizes: tuple[int, ...] = (64,)
    dtype: str = "fp16"

    def __post_init__(self) -> None:
        heads = tuple((heads, 1) for heads in self.q_heads)
        AttentionGrid(shapes=self.shapes, heads=heads, block_sizes=self.block_sizes, dtypes=(self.dtype,))
        if self.dtype not in WHOLE_DTYPES:
            raise PagesimError(f"dtype is {self.dtype}; mla-decode has fp16, bf16 and fp32")

    def points(self) -> Iterator[Point]:
        """Yield the points."""
        for (batch, context), q_heads, block_size in product(self.shapes, self.q_heads, self.block_sizes):
            shape = {"batch": batch, "context": context, "block_size": block_size, "dtype": self.dtype}
            model = {"q_heads": q_heads, "kv_heads": 1, "head_size": LATENT_DIM + ROPE_DIM}
            yield Point("attention", MLA_OP, {**shape, **model})

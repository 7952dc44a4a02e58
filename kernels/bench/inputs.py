"""Inputs of attention: random queries, caches and block tables, together larger than any hardware cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from pagesim.kernels.bench.rows import Point
from pagesim.kernels.bench.session import Session
from pagesim.kernels.cache import Cache, Sizes
from pagesim.kernels.timing import Call, rotations

DTYPES = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "fp8": torch.float8_e4m3fn,
}
"""Types of caches and matrices."""

TOLERANCE = {"fp16": 5e-3, "bf16": 4e-2, "fp32": 5e-3, "fp8": 5e-2}
"""Maximum of max|error| / max|reference|; it only guards against wrong results."""


TILE = 128
"""Tokens to a multiple of which contiguous sequences are padded."""


def query_dtype(name: str) -> torch.dtype:
    """Return the queries' dtype for a cache of this dtype: the same, or fp16 for FP8."""
    return torch.float16 if name == "fp8" else DTYPES[name]


@dataclass(frozen=True)
class Inputs:
    """S batches over one cache.

    Attributes:
        queries: ``[S, rows, q_heads, D]``.
        cache: keys and values of all batches.
        tables: block tables, int32 ``[S, batch, max_blocks]``.
        lengths: int32 ``[batch]``.
    """

    queries: torch.Tensor
    cache: Cache
    tables: torch.Tensor
    lengths: torch.Tensor

    def calls(self, attend: Callable[..., Any], *more: Iterable[Any]) -> list[Call]:
        """Return one call per batch, with its queries, its block table and its part of ``more``."""
        return [partial(attend, *each) for each in zip(self.queries, self.tables, *more, strict=True)]

    def tokens(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values of a sequence of the first batch, ``[context, kv_heads, D]``."""
        length = int(self.lengths[row])
        blocks = self.tables[0, row, : -(-length // self.cache.sizes.block_size)].long()
        keys, values = (each[blocks].flatten(0, 1)[:length] for each in (self.cache.keys, self.cache.values))
        return keys, values


def paged(point: Point, session: Session, rows: int, *, contiguous: bool = False) -> Inputs:
    """Return inputs for a point.

    Args:
        point: point with the lengths and widths.
        session: session on the device to use.
        rows: queries per batch.
        contiguous: whether each sequence is one block, padded to whole tiles; otherwise, blocks are in
            random positions.
    """
    batch, context, heads, dim = (point[name] for name in ("batch", "context", "kv_heads", "head_size"))
    dtype, layout = DTYPES[point["dtype"]], point.parameters.get("layout", "NHD")
    sets = rotations(2 * batch * context * heads * dim * dtype.itemsize, session.device)
    size = -(-context // TILE) * TILE if contiguous else point["block_size"]
    width = -(-context // size)
    total = sets * batch * width
    shape = Sizes(total, size, heads, dim).shape(layout)
    cache = Cache(*(session.random(*shape, dtype=dtype) for _ in range(2)), layout=layout)
    queries = session.random(sets, rows, point["q_heads"], dim, dtype=query_dtype(point["dtype"]))
    order = torch.arange(total) if contiguous else torch.randperm(total, generator=session.generator(point))
    tables = order.int().view(sets, batch, width).to(session.device)
    lengths = torch.full((batch,), context, dtype=torch.int32, device=session.device)
    return Inputs(queries, cache, tables, lengths)

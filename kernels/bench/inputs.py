"""Inputs of attention: random queries, caches and block tables, enough of them that no cache holds all."""

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
"""What a cache, or a matrix, holds."""

TOLERANCE = {"fp16": 5e-3, "bf16": 4e-2, "fp32": 5e-3, "fp8": 5e-2}
"""max|error| / max|reference| that still counts as right: it guards against wrong results, no more."""


def query_dtype(name: str) -> torch.dtype:
    """Return what queries are in where the cache is of this dtype: the same, or fp16 beside FP8."""
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
        """Return a call for each batch, of its queries, its block table and what else there is of each."""
        return [partial(attend, *each) for each in zip(self.queries, self.tables, *more, strict=True)]

    def tokens(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values of a sequence of the first batch, ``[context, kv_heads, D]``."""
        length = int(self.lengths[row])
        blocks = self.tables[0, row, : -(-length // self.cache.sizes.block_size)].long()
        keys, values = (each[blocks].flatten(0, 1)[:length] for each in (self.cache.keys, self.cache.values))
        return keys, values


def kv_bytes(point: Point) -> int:
    """Return the bytes of all keys and values of a batch."""
    width = point["kv_heads"] * point["head_size"] * DTYPES[point["dtype"]].itemsize
    return int(2 * point["batch"] * point["context"] * width)


def paged(point: Point, session: Session, rows: int) -> Inputs:
    """Return paged inputs for a point, ``rows`` queries a batch, their blocks in random places."""
    sets, batch = rotations(kv_bytes(point), session.device), point["batch"]
    width = -(-point["context"] // point["block_size"])
    total = sets * batch * width
    tensors = _tensors(point, session, sets, rows, (total, point["block_size"]))
    order = torch.randperm(total, generator=session.generator(point), dtype=torch.int32)
    return _inputs(point, session, tensors, order.view(sets, batch, width))


def contiguous(point: Point, session: Session, rows: int) -> Inputs:
    """Return contiguous inputs for a point: each sequence is one block, as wide as the longest."""
    sets, batch = rotations(kv_bytes(point), session.device), point["batch"]
    width = -(-point["context"] // 128) * 128  # whole tiles
    tensors = _tensors(point, session, sets, rows, (sets * batch, width))
    return _inputs(point, session, tensors, torch.arange(sets * batch).int().view(sets, batch, 1))


Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Queries, keys and values."""


def _tensors(point: Point, session: Session, sets: int, rows: int, blocks: tuple[int, int]) -> Tensors:
    heads, dim = point["kv_heads"], point["head_size"]
    shape = Sizes(*blocks, heads, dim).shape(point.parameters.get("layout", "NHD"))
    keys, values = (session.random(*shape, dtype=DTYPES[point["dtype"]]) for _ in range(2))
    q_dtype = query_dtype(point["dtype"])
    return session.random(sets, rows, point["q_heads"], dim, dtype=q_dtype), keys, values


def _inputs(point: Point, session: Session, tensors: Tensors, tables: torch.Tensor) -> Inputs:
    queries, keys, values = tensors
    cache = Cache(keys, values, layout=point.parameters.get("layout", "NHD"))
    lengths = torch.full((point["batch"],), point["context"], dtype=torch.int32, device=session.device)
    return Inputs(queries, cache, tables.to(session.device), lengths)

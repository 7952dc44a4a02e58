"""Random inputs of attention ops: several disjoint batches in one cache, with shuffled block tables."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from pagesim.kernels.bench.dtypes import DTYPES, query_dtype
from pagesim.kernels.bench.rows import Point, context_lens
from pagesim.kernels.bench.session import Session
from pagesim.kernels.cache import Cache
from pagesim.kernels.layouts import HND, Layout, Sizes, find_layout
from pagesim.kernels.timing import rotations


@dataclass(frozen=True)
class Paged:
    """Batches of sequences whose contexts lie in blocks, S batches that share no block.

    Attributes:
        queries: ``[S, rows, q_heads, D]``; a row a sequence for decode, ``query`` rows for prefill.
        key_cache: in ``layout``.
        value_cache: in ``layout``.
        tables: int32 ``[S, batch, max_blocks]``, no block twice, in random order.
        lengths: int32 ``[batch]``, every context's length.
        layout: of the caches.
    """

    queries: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    tables: torch.Tensor
    lengths: torch.Tensor
    layout: Layout

    def tokens(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values of a sequence of the first batch, ``[context, kv_heads, D]``."""
        length = int(self.lengths[row])
        blocks = self.tables[0, row, : -(-length // self.layout.sizes(self.key_cache).block_size)].long()
        keys = self.layout.key.to_plain(self.key_cache[blocks]).flatten(0, 1)[:length]
        return keys, self.layout.value.to_plain(self.value_cache[blocks]).flatten(0, 1)[:length]

    @cached_property
    def cache(self) -> Cache:
        """The cache as kernels take it."""
        return Cache(self.key_cache, self.value_cache, layout=self.layout)


@dataclass(frozen=True)
class Contiguous:
    """Batches of sequences whose contexts lie in one piece.

    Attributes:
        queries: ``[S, rows, q_heads, D]``.
        keys: ``[S, batch, context, kv_heads, D]``, or HND's ``[S, batch, kv_heads, context, D]``.
        values: as ``keys``.
        lengths: int32 ``[batch]``.
        layout: NHD or HND.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    lengths: torch.Tensor
    layout: Layout

    def tokens(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values of a sequence of the first batch, ``[context, kv_heads, D]``."""
        keys, values = self.keys[0, row], self.values[0, row]
        return (keys.transpose(0, 1), values.transpose(0, 1)) if self.layout is HND else (keys, values)

    @cached_property
    def caches(self) -> list[Cache]:
        """Each batch as kernels take it."""
        pairs = zip(self.keys, self.values, strict=True)
        return [Cache(*pair, layout=self.layout, paged=False) for pair in pairs]


def kv_bytes(point: Point) -> int:
    """Return the bytes of all keys and values of a batch."""
    width = point["kv_heads"] * point["head_size"] * DTYPES[point["dtype"]].itemsize
    return int(2 * sum(context_lens(point)) * width)


def paged(point: Point, session: Session, rows: int) -> Paged:
    """Return paged inputs for a point, ``rows`` queries a batch."""
    block_size, batch = point["block_size"], point["batch"]
    layout = find_layout(point["layout"])
    dtype = DTYPES[point["dtype"]]
    sets = rotations(kv_bytes(point), session.device)
    held = torch.tensor([-(-length // block_size) for length in context_lens(point)])
    width = int(held.max())
    total = sets * int(held.sum())
    sizes = Sizes(total, block_size, point["kv_heads"], point["head_size"])
    keys, values = (session.random(*shape, dtype=dtype) for shape in layout.shapes(sizes, dtype.itemsize))
    order = torch.randperm(total, generator=session.generator(point), dtype=torch.int32)
    tables = torch.zeros(sets, batch, width, dtype=torch.int32)
    tables[(torch.arange(width) < held[:, None]).expand(sets, -1, -1)] = order
    tables = tables.to(session.device)
    return Paged(_queries(point, session, sets, rows), keys, values, tables, _lengths(point, session), layout)


def contiguous(point: Point, session: Session, rows: int, layout: Layout) -> Contiguous:
    """Return contiguous inputs for a point, ``rows`` queries a batch."""
    dtype = DTYPES[point["dtype"]]
    sets = rotations(kv_bytes(point), session.device)
    inner = [point["context"], point["kv_heads"]]
    if layout is HND:
        inner.reverse()
    shape = (sets, point["batch"], *inner, point["head_size"])
    keys, values = (session.random(*shape, dtype=dtype) for _ in range(2))
    return Contiguous(_queries(point, session, sets, rows), keys, values, _lengths(point, session), layout)


def _queries(point: Point, session: Session, sets: int, rows: int) -> torch.Tensor:
    shape = (sets, rows, point["q_heads"], point["head_size"])
    return session.random(*shape, dtype=query_dtype(point["dtype"]))


def _lengths(point: Point, session: Session) -> torch.Tensor:
    return torch.tensor(context_lens(point), dtype=torch.int32).to(session.device)

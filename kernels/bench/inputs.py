"""Random inputs of attention ops: several disjoint batches in one cache, with shuffled block tables."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from pagesim.kernels.bench.dtypes import DTYPES, has_token_scales, query_dtype, vector_bytes
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
        scales: of keys and values, float32 ``[blocks, kv_heads, block_size]`` each; None for none.
    """

    queries: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    tables: torch.Tensor
    lengths: torch.Tensor
    layout: Layout
    scales: tuple[torch.Tensor, torch.Tensor] | None = None

    def tokens(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values of a sequence of the first batch, ``[context, kv_heads, D]``."""
        length = int(self.lengths[row])
        blocks = self.tables[0, row, : -(-length // self.layout.sizes(self.key_cache).block_size)].long()
        keys = self.layout.key.to_plain(self.key_cache[blocks]).flatten(0, 1)[:length]
        values = self.layout.value.to_plain(self.value_cache[blocks]).flatten(0, 1)[:length]
        if self.scales is None:
            return keys, values
        k_scale, v_scale = (
            scale[blocks].transpose(1, 2).flatten(0, 1)[:length, :, None] for scale in self.scales
        )
        return keys.float() * k_scale, values.float() * v_scale

    @cached_property
    def cache(self) -> Cache:
        """The cache as kernels take it."""
        return Cache(self.key_cache, self.value_cache, layout=self.layout, **named(self.scales))


@dataclass(frozen=True)
class Contiguous:
    """Batches of sequences whose contexts lie in one piece.

    Attributes:
        queries: ``[S, rows, q_heads, D]``.
        keys: ``[S, batch, context, kv_heads, D]``, or HND's ``[S, batch, kv_heads, context, D]``.
        values: as ``keys``.
        lengths: int32 ``[batch]``.
        layout: NHD or HND.
        scales: of keys and values, float32 ``[S, batch, kv_heads, context]`` each; None for none.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    lengths: torch.Tensor
    layout: Layout
    scales: tuple[torch.Tensor, torch.Tensor] | None = None

    def tokens(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values of a sequence of the first batch, ``[context, kv_heads, D]``."""
        keys, values = self.keys[0, row], self.values[0, row]
        if self.layout is HND:
            keys, values = keys.transpose(0, 1), values.transpose(0, 1)
        if self.scales is None:
            return keys, values
        k_scale, v_scale = (scale[0, row].T[..., None] for scale in self.scales)
        return keys.float() * k_scale, values.float() * v_scale

    @cached_property
    def caches(self) -> list[Cache]:
        """Each batch as kernels take it."""
        scales = [None] * len(self.keys) if self.scales is None else zip(*self.scales, strict=True)
        triples = zip(self.keys, self.values, scales, strict=True)
        return [
            Cache(keys, values, layout=self.layout, paged=False, **named(both))
            for keys, values, both in triples
        ]


def named(scales: tuple[torch.Tensor, torch.Tensor] | None) -> dict[str, Any]:
    """Return scales as a cache takes them."""
    return {} if scales is None else dict(zip(("k_scale", "v_scale"), scales, strict=True))


def token_scales(point: Point, session: Session, *shape: int) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return random scales of keys and values where the point's cache has them, one over what is stored."""
    if not has_token_scales(point["dtype"]):
        return None
    most = 64 if DTYPES[point["dtype"]] == torch.int8 else 1
    k_scale, v_scale = (
        session.empty(*shape, dtype=torch.float32).uniform_(0.5 / most, 1.5 / most) for _ in range(2)
    )
    return k_scale, v_scale


def kv_bytes(point: Point) -> int:
    """Return the bytes of all keys and values of a batch."""
    width = point["kv_heads"] * vector_bytes(point["dtype"], point["head_size"])
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
    scales = token_scales(point, session, total, point["kv_heads"], block_size)
    queries, lengths = _queries(point, session, sets, rows), _lengths(point, session)
    return Paged(queries, keys, values, tables, lengths, layout, scales)


def contiguous(point: Point, session: Session, rows: int, layout: Layout) -> Contiguous:
    """Return contiguous inputs for a point, ``rows`` queries a batch."""
    dtype = DTYPES[point["dtype"]]
    sets = rotations(kv_bytes(point), session.device)
    inner = [point["context"], point["kv_heads"]]
    if layout is HND:
        inner.reverse()
    shape = (sets, point["batch"], *inner, point["head_size"])
    keys, values = (session.random(*shape, dtype=dtype) for _ in range(2))
    scales = token_scales(point, session, sets, point["batch"], point["kv_heads"], point["context"])
    queries, lengths = _queries(point, session, sets, rows), _lengths(point, session)
    return Contiguous(queries, keys, values, lengths, layout, scales)


def _queries(point: Point, session: Session, sets: int, rows: int) -> torch.Tensor:
    shape = (sets, rows, point["q_heads"], point["head_size"])
    return session.random(*shape, dtype=query_dtype(point["dtype"]))


def _lengths(point: Point, session: Session) -> torch.Tensor:
    return torch.tensor(context_lens(point), dtype=torch.int32).to(session.device)

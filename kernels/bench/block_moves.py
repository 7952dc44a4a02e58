"""Whole blocks of many caches: copied (copy-on-write), gathered and scattered (both halves of a swap)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from pagesim.kernels import BlockPool, copy_blocks, gather_blocks, scatter_blocks
from pagesim.kernels.bench.inputs import DTYPES
from pagesim.kernels.bench.rows import Point
from pagesim.kernels.bench.session import Case, Session
from pagesim.kernels.timing import Call, rotations


def prepare(point: Point, session: Session) -> Case:
    """Return a move of blocks, made ready."""
    of_each = 2 if point.op == "copy-blocks" else 1
    dtype = DTYPES[point["dtype"]]
    moved = 2 * point["blocks"] * point["pieces"] * point["piece_bytes"]
    sets, wanted = rotations(moved, session.device), of_each * point["blocks"]
    numbers = point["piece_bytes"] // dtype.itemsize
    pool = BlockPool([session.random(sets * wanted, numbers, dtype=dtype) for _ in range(point["pieces"])])
    order = torch.randperm(sets * wanted, generator=session.generator(point))
    ids = order.view(sets, wanted).to(session.device)  # none twice
    make = {"copy-blocks": _copy, "gather-blocks": _gather, "scatter-blocks": _scatter}[point.op]
    calls, check = make(session, pool, ids)
    return Case(calls, bytes_moved=moved, check=check)


Made = tuple[list[Call], Callable[[], float]]


def _copy(session: Session, pool: BlockPool, ids: torch.Tensor) -> Made:
    def call(pairs: torch.Tensor) -> Call:
        return lambda: copy_blocks(pool, pairs)

    calls = [call(chosen.view(-1, 2)) for chosen in ids]

    def check() -> float:
        source, target = ids[0].view(-1, 2).unbind(1)
        calls[0]()
        return _differ((cache[source], cache[target]) for cache in pool.caches)

    return calls, check


def _gather(session: Session, pool: BlockPool, ids: torch.Tensor) -> Made:
    out = session.empty(ids.shape[1], len(pool), *pool.block, dtype=pool.dtype)
    out.fill_(torch.nan)

    def call(chosen: torch.Tensor) -> Call:
        return lambda: gather_blocks(pool, chosen, out=out)

    calls = [call(chosen) for chosen in ids]

    def check() -> float:
        calls[0]()
        return _differ((cache[ids[0]], out[:, place]) for place, cache in enumerate(pool.caches))

    return calls, check


def _scatter(session: Session, pool: BlockPool, ids: torch.Tensor) -> Made:
    staging = session.random(ids.shape[1], len(pool), *pool.block, dtype=pool.dtype)

    def call(chosen: torch.Tensor) -> Call:
        return lambda: scatter_blocks(staging, pool, chosen)

    calls = [call(chosen) for chosen in ids]

    def check() -> float:
        calls[0]()
        return _differ((cache[ids[0]], staging[:, place]) for place, cache in enumerate(pool.caches))

    return calls, check


def _differ(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Return 0 if all pairs are equal, else 1."""
    return float(not all(torch.equal(a, b) for a, b in pairs))

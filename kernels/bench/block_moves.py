"""Moves of whole blocks of many caches: copies (copy-on-write), gathers and scatters (halves of a swap)."""

from __future__ import annotations

import torch

from pagesim.kernels import BlockPool, copy_blocks, gather_blocks, scatter_blocks
from pagesim.kernels.bench.inputs import DTYPES
from pagesim.kernels.bench.rows import Point
from pagesim.kernels.bench.session import Case, Session
from pagesim.kernels.timing import Call, rotations


def prepare(point: Point, session: Session) -> Case:
    """Prepare a move of blocks."""
    copies = point.op == "copy-blocks"
    dtype, blocks = DTYPES[point["dtype"]], point["blocks"]
    moved = 2 * blocks * point["pieces"] * point["piece_bytes"]
    sets, wanted = rotations(moved, session.device), 2 * blocks if copies else blocks
    shape = (sets * wanted, point["piece_bytes"] // dtype.itemsize)
    pool = BlockPool([session.random(*shape, dtype=dtype) for _ in range(point["pieces"])])
    order = torch.randperm(sets * wanted, generator=session.generator(point))
    ids = order.view(sets, wanted).to(session.device)  # none twice
    staging = session.random(blocks, len(pool), *pool.block, dtype=dtype)

    def call(chosen: torch.Tensor) -> Call:
        if copies:
            return lambda: copy_blocks(pool, chosen.view(-1, 2))
        if point.op == "gather-blocks":
            return lambda: gather_blocks(pool, chosen, out=staging)
        return lambda: scatter_blocks(staging, pool, chosen)

    calls = [call(chosen) for chosen in ids]

    def check() -> float:
        """Return 0 if all blocks have arrived, else 1."""
        if point.op == "gather-blocks":
            staging.fill_(torch.nan)
        ours, theirs = ids[0].view(-1, 2).unbind(1) if copies else (ids[0], ids[0])
        calls[0]()
        pairs = (
            (cache[ours], cache[theirs] if copies else staging[:, place])
            for place, cache in enumerate(pool.caches)
        )
        return float(not all(torch.equal(a, b) for a, b in pairs))

    return Case(calls, bytes_moved=moved, check=check)

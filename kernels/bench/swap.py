"""Swaps in the bench: every strategy over piece size × count, and one large copy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from pagesim.kernels.bench.rows import Point
from pagesim.kernels.bench.session import Case, Session
from pagesim.kernels.swap import Pools, SwapStrategy, Transfer, make_strategy
from pagesim.kernels.swap.base import BlockIds
from pagesim.kernels.timing import Call

SETS = 2
"""Number of disjoint sets of blocks to time a swap over; the link is far slower than any cache."""


def prepare(point: Point, session: Session) -> Case:
    """Prepare a swap."""
    if point.op == "pinned-copy":
        return _pinned_copy(point, session)
    return _swap(point, session)


def _pinned_copy(point: Point, session: Session) -> Case:
    size, out = point["piece_bytes"], point["direction"] == "out"
    ours = session.random(size, dtype=torch.uint8)
    theirs = session.fill(session.host_bytes(size))
    target, source = (theirs, ours) if out else (ours, theirs)
    return Case(
        [lambda: target.copy_(source, non_blocking=True)],
        bytes_moved=size,
        reference=f"pinned-copy-{point['direction']}",
        by_wall=True,
    )


def _swap(point: Point, session: Session) -> Case:
    blocks, pieces, size = point["blocks"], point["pieces"], point["piece_bytes"]
    total = SETS * blocks
    caches = session.random(pieces, total, size, dtype=torch.uint8)
    host = session.host_bytes(total * pieces * size).view(total, pieces, size)
    strategy = make_strategy(point["strategy"], Pools(tuple(caches), host))
    pairs = choose_pairs(point, session, total, total).reshape(SETS, blocks, 2)
    check = check_swap(
        point, session, strategy.pools, pairs[0], lambda: start(strategy, point, pairs[0]).wait()
    )

    def call(chosen: BlockIds) -> Call:
        return lambda: start(strategy, point, chosen)

    return Case(
        [call(chosen) for chosen in pairs],
        bytes_moved=blocks * strategy.pools.block_bytes,
        check=check,
        reference=f"pinned-copy-{point['direction']}",
        by_wall=True,
    )


def check_swap(
    point: Point, session: Session, pools: Pools, pairs: BlockIds, swap: Call
) -> Callable[[], float]:
    """Return a check that compares blocks before and after a swap of pairs (device block, host block)."""

    def check() -> float:
        # Compared on the device: comparing on the host takes longer than the link takes to bring the blocks.
        device, host = torch.from_numpy(pairs).to(session.device).T
        out = point["direction"] == "out"

        def here() -> torch.Tensor:
            return torch.stack([cache[device] for cache in pools.rows()], 1)

        def there() -> torch.Tensor:
            return pools.host.to(session.device)[host]

        session.fill(pools.host)
        source = here() if out else there()
        swap()
        return float(not torch.equal(there() if out else here(), source))

    return check


def choose_pairs(point: Point, session: Session, device_blocks: int, host_blocks: int) -> BlockIds:
    """Return pairs of a random device block and a host block, ``[host_blocks, 2]``."""
    random = np.random.default_rng(session.generator(point).initial_seed())
    device = random.permutation(device_blocks)[:host_blocks]
    # A swap space with a fresh free list hands out neighbours; one that was long in use does not.
    neighbours = point["host_blocks"] == "neighbours"
    there = np.arange(host_blocks) if neighbours else random.permutation(host_blocks)
    return np.stack([device, there], 1)


def start(strategy: SwapStrategy, point: Point, pairs: BlockIds) -> Transfer:
    """Start a point's swap of pairs (device block, host block)."""
    if point["direction"] == "out":
        return strategy.swap_out(pairs)
    return strategy.swap_in(pairs[:, ::-1])

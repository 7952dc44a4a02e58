"""Swaps of KV cache blocks between a device and host memory, by several strategies with one contract."""

from __future__ import annotations

from pagesim.errors import PagesimError
from pagesim.kernels.swap.base import Copy, Direction, Pools, SwapStrategy, Transfer
from pagesim.kernels.swap.copies import CopyBatch, CopyEach
from pagesim.kernels.swap.gather import GatherCopy

__all__ = [
    "STRATEGIES",
    "Copy",
    "CopyBatch",
    "CopyEach",
    "Direction",
    "GatherCopy",
    "Pools",
    "SwapStrategy",
    "Transfer",
    "make_strategy",
]

STRATEGIES: dict[str, type[SwapStrategy]] = {
    strategy.name: strategy for strategy in (CopyEach, GatherCopy, CopyBatch)
}
"""The strategies by name."""


def make_strategy(name: str, pools: Pools) -> SwapStrategy:
    """Return a strategy by name.

    Raises:
        PagesimError: no strategy has this name.
        Unavailable: it cannot run on these pools' device; the message says what is missing.
    """
    if name not in STRATEGIES:
        raise PagesimError(f"strategy is {name!r}; it must be one of {', '.join(STRATEGIES)}")
    return STRATEGIES[name](pools)

"""FIFO: the block that was cached first goes first."""

from __future__ import annotations

from pagesim.eviction.lru import Lru
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Fifo(Lru):
    """Evicts blocks in the order in which they were cached: a hit moves none."""

    __slots__ = ()

    def hit(self, block: int) -> None:
        return

"""GDSF: the block whose uses save the fewest FLOPs goes first, and what is not used ages."""

from __future__ import annotations

from pagesim.eviction.lfu import Lfu
from pagesim.eviction.policy import CacheView
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Gdsf(Lfu):
    """Greedy-dual-size with frequency: priority = clock + uses · FLOPs to compute the block again.

    The clock is the priority of the block that went last, so blocks that are no longer used fall behind. All
    blocks have one size. With equal costs it is LFU with dynamic aging.

    Source: L. Cherkasova, HPL-98-69 (1998).
    """

    __slots__ = ("_clock",)

    def __init__(self, cache: CacheView) -> None:
        super().__init__(cache)
        self._clock = 0.0

    def evict(self) -> int | None:
        block = self._ranking.first()
        if block is not None:
            self._clock = self._ranking.keys[block][0]
        return super().evict()

    def _priority(self, block: int) -> float:
        return self._clock + self._uses[block] * self.cache.recompute[block]

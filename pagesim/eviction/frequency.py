"""Policies that rank blocks by how often they were used: LFU, SLRU and GDSF."""

from __future__ import annotations

from typing import Any

from pagesim.eviction.policy import CacheView
from pagesim.eviction.ranking import RankedPolicy
from pagesim.setup.compiled import mypyc_attr

PROTECTED = 2
"""Number of uses, including the first, from which SLRU protects a block; SGLang's default."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Lfu(RankedPolicy):
    """Evicts the least frequently used block; ties go to the least recently used one.

    A block's use count is forgotten when it is evicted.
    """

    __slots__ = ("_uses",)

    def __init__(self, cache: CacheView) -> None:
        super().__init__(cache)
        self._uses: dict[int, int] = {}

    def key(self, block: int) -> Any:
        self._uses[block] = self._uses.get(block, 0) + 1
        return self._priority(block), self.ticks

    def evict(self) -> int | None:
        block = self.ranking.pop()
        if block is not None:
            del self._uses[block]
        return block

    def _priority(self, block: int) -> float:
        """Return a block's priority; the lowest is evicted first."""
        return self._uses[block]


@mypyc_attr(allow_interpreted_subclasses=True)
class Slru(Lfu):
    """Evicts the least recently used of the blocks used once, or of the others if none of these is evictable.

    Source: SGLang 0.5.23, srt/mem_cache/evict_policy.py.
    """

    __slots__ = ()

    def _priority(self, block: int) -> float:
        return float(self._uses[block] >= PROTECTED)


@mypyc_attr(allow_interpreted_subclasses=True)
class Gdsf(Lfu):
    """Greedy-dual-size with frequency: priority = clock + uses · FLOPs to recompute the block.

    The clock is the priority of the last evicted block, so blocks that are no longer used fall behind. All
    blocks have the same size. With equal costs it is LFU with dynamic aging.

    Source: L. Cherkasova, HPL-98-69 (1998).
    """

    __slots__ = ("_clock",)

    def __init__(self, cache: CacheView) -> None:
        super().__init__(cache)
        self._clock = 0.0

    def evict(self) -> int | None:
        block = self.ranking.first()
        if block is not None:
            self._clock = self.ranking.keys[block][0]
        return super().evict()

    def _priority(self, block: int) -> float:
        return self._clock + self._uses[block] * self.cache.recompute[block]

"""LFU: the block with the fewest uses goes first."""

from __future__ import annotations

from pagesim.eviction.policy import CacheView, EvictionPolicy
from pagesim.eviction.ranking import Ranking
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Lfu(EvictionPolicy):
    """Evicts the least frequently used block, of several the least recently used one.

    Uses are forgotten with the block.
    """

    __slots__ = ("_ranking", "_ticks", "_uses")

    def __init__(self, cache: CacheView) -> None:
        super().__init__(cache)
        self._ranking = Ranking(cache)
        self._uses: dict[int, int] = {}
        self._ticks = 0

    def hit(self, block: int) -> None:
        self._use(block)

    def insert(self, block: int) -> None:
        self._use(block)

    def freed(self, block: int) -> None:
        self._ranking.freed(block)

    def evict(self) -> int | None:
        block = self._ranking.pop()
        if block is not None:
            del self._uses[block]
        return block

    def _use(self, block: int) -> None:
        self._uses[block] = self._uses.get(block, 0) + 1
        self._ticks += 1
        self._ranking.put(block, (self._priority(block), self._ticks))

    def _priority(self, block: int) -> float:
        """Return what makes a block stay."""
        return self._uses[block]

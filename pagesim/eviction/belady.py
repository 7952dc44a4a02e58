"""Belady: the block that is asked for again the latest goes first, of those that are there."""

from __future__ import annotations

from pagesim.eviction.policy import CacheView, EvictionPolicy
from pagesim.eviction.ranking import Ranking
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Belady(EvictionPolicy):
    """Evicts by the future, and caches every block that was computed.

    The bound (`pagesim.eviction.bound`) may also leave a block out, so it has more hits.

    Source: L. A. Belady, IBM Systems Journal 5 (1966).
    """

    __slots__ = ("_ranking", "_ticks")

    def __init__(self, cache: CacheView) -> None:
        super().__init__(cache)
        self._ranking = Ranking(cache)
        self._ticks = 0

    def hit(self, block: int) -> None:
        self.insert(block)

    def insert(self, block: int) -> None:
        self._ticks += 1
        self._ranking.put(block, (-self.cache.next_request, -self._ticks))

    def freed(self, block: int) -> None:
        self._ranking.freed(block)

    def evict(self) -> int | None:
        return self._ranking.pop()

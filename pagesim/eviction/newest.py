"""MRU and FILO: the block that was used, or cached, last goes first (SGLang's ``mru`` and ``filo``)."""

from __future__ import annotations

from pagesim.eviction.policy import CacheView, EvictionPolicy
from pagesim.eviction.ranking import Ranking
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Mru(EvictionPolicy):
    """Evicts the most recently used block.

    Source: SGLang 0.5.23, srt/mem_cache/evict_policy.py.
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
        self._ranking.put(block, -self._ticks)

    def freed(self, block: int) -> None:
        self._ranking.freed(block)

    def evict(self) -> int | None:
        return self._ranking.pop()


@mypyc_attr(allow_interpreted_subclasses=True)
class Filo(Mru):
    """Evicts the block that was cached last: a hit moves none."""

    __slots__ = ()

    def hit(self, block: int) -> None:
        return

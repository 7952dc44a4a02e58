"""Retention: the block of the lowest priority goes first, and priorities may end."""

from __future__ import annotations

from heapq import heappop, heappush

from pagesim.eviction.policy import CacheView, EvictionPolicy
from pagesim.eviction.ranking import Ranking
from pagesim.setup.compiled import mypyc_attr

DEFAULT_PRIORITY = 35


@mypyc_attr(allow_interpreted_subclasses=True)
class Retention(EvictionPolicy):
    """Evicts by the priority that a block's last request gave it, of several the one used longest ago.

    A priority that has a duration becomes the default, behind the others that have it, when it is over.

    Source: TensorRT-LLM, cpp/tensorrt_llm/batch_manager/evictionPolicy.cpp.
    """

    __slots__ = ("_ends", "_ranking", "_ticks")

    def __init__(self, cache: CacheView) -> None:
        super().__init__(cache)
        self._ranking = Ranking(cache)
        self._ticks = 0
        self._ends: list[tuple[float, int, int]] = []

    def hit(self, block: int) -> None:
        self.insert(block)

    def miss(self, block: int) -> bool:
        while self._ends and self._ends[0][0] <= self.cache.now:
            _, tick, ended = heappop(self._ends)
            if self._ranking.keys.get(ended, (0, 0))[1] == tick:
                self._rank(ended, DEFAULT_PRIORITY)
        return True

    def insert(self, block: int) -> None:
        cache = self.cache
        self._rank(block, cache.priority)
        if cache.duration is not None and cache.priority != DEFAULT_PRIORITY:
            heappush(self._ends, (cache.now + cache.duration, self._ticks, block))

    def freed(self, block: int) -> None:
        self._ranking.freed(block)

    def evict(self) -> int | None:
        return self._ranking.pop()

    def _rank(self, block: int, priority: int) -> None:
        self._ticks += 1
        self._ranking.put(block, (priority, self._ticks))

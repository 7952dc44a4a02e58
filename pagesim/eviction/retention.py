"""Policies that rank blocks by request priority: TensorRT-LLM's retention and SGLang's ``priority``."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

from pagesim.eviction.policy import CacheView
from pagesim.eviction.ranking import RankedPolicy
from pagesim.setup.compiled import mypyc_attr

DEFAULT_PRIORITY = 35


@mypyc_attr(allow_interpreted_subclasses=True)
class Retention(RankedPolicy):
    """Evicts the block with the lowest priority from its last request; ties go to the least recently used.

    When the duration of a priority ends, the block gets the default priority, as the newest block with it.

    Source: TensorRT-LLM, cpp/tensorrt_llm/batch_manager/evictionPolicy.cpp.
    """

    __slots__ = ("_ends",)

    def __init__(self, cache: CacheView) -> None:
        super().__init__(cache)
        self._ends: list[tuple[float, int, int]] = []

    def miss(self, block: int) -> bool:
        while self._ends and self._ends[0][0] <= self.cache.now:
            _, tick, ended = heappop(self._ends)
            if self.ranking.keys.get(ended, (0, 0))[1] == tick:
                self.ticks += 1
                self.ranking.put(ended, (DEFAULT_PRIORITY, self.ticks))
        return True

    def key(self, block: int) -> Any:
        cache = self.cache
        if cache.duration is not None and cache.priority != DEFAULT_PRIORITY:
            heappush(self._ends, (cache.now + cache.duration, self.ticks, block))
        return cache.priority, self.ticks


@mypyc_attr(allow_interpreted_subclasses=True)
class Priority(RankedPolicy):
    """Evicts the block whose highest request priority is lowest; ties go to the least recently used.

    Priorities do not expire.

    Source: SGLang 0.5.23, srt/mem_cache/evict_policy.py.
    """

    __slots__ = ()

    def key(self, block: int) -> Any:
        priority = self.cache.priority
        known: int = self.ranking.keys.get(block, (priority, 0))[0]
        return max(priority, known), self.ticks

"""LRU: the block that was used longest ago goes first."""

from __future__ import annotations

from pagesim.eviction.policy import CacheView, EvictionPolicy
from pagesim.eviction.ranking import Queue
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Lru(EvictionPolicy):
    """Evicts the least recently used block (vLLM's device cache, SGLang's default)."""

    __slots__ = ("_queue",)

    def __init__(self, cache: CacheView) -> None:
        super().__init__(cache)
        self._queue = Queue(cache)

    def hit(self, block: int) -> None:
        self._queue.append(block)

    def insert(self, block: int) -> None:
        self._queue.append(block)

    def freed(self, block: int) -> None:
        self._queue.freed(block)

    def evict(self) -> int | None:
        return self._queue.pop()

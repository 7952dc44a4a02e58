"""S3-FIFO: two FIFO queues, a small one that filters out blocks not reused soon, and a main one."""

from __future__ import annotations

from pagesim.eviction.policy import CacheView, EvictionPolicy
from pagesim.eviction.ranking import Ghosts, Queue
from pagesim.setup.compiled import mypyc_attr

SMALL = 0.1
"""Share of the capacity for the small queue."""

GHOSTS = 0.9
"""Remembered names as a share of the capacity."""

USES_TO_STAY = 2
"""Hits in the small queue that promote a block to the main one."""

MOST_USES = 3


@mypyc_attr(allow_interpreted_subclasses=True)
class S3Fifo(EvictionPolicy):
    """Simple, scalable caching with three FIFO queues: small, main and ghosts.

    Source: J. Yang et al., "FIFO queues are all you need for cache eviction", SOSP'23.
    """

    __slots__ = (
        "_ghosts",
        "_has_evicted",
        "_main",
        "_main_room",
        "_small",
        "_small_room",
        "_to_main",
        "_uses",
    )

    def __init__(self, cache: CacheView) -> None:
        super().__init__(cache)
        self._small, self._main = Queue(cache), Queue(cache)
        self._small_room = int(cache.capacity * SMALL)
        self._main_room = cache.capacity - self._small_room
        self._ghosts = Ghosts(int(cache.capacity * GHOSTS))
        self._uses: dict[int, int] = {}
        self._to_main = self._has_evicted = False

    def hit(self, block: int) -> None:
        self._uses[block] += 1

    def miss(self, block: int) -> bool:
        self._to_main = self._ghosts.take(block)
        return True

    def insert(self, block: int) -> None:
        self._uses[block] = 0
        fills = not self._has_evicted and len(self._small) >= self._small_room
        (self._main if self._to_main or fills else self._small).append(block)
        self._to_main = False

    def freed(self, block: int) -> None:
        self._small.freed(block)
        self._main.freed(block)

    def evict(self) -> int | None:
        self._has_evicted = True
        # A block that the small queue promotes may be the only evictable one of the main queue.
        for _ in range(2):
            main_first = len(self._main) > self._main_room or not len(self._small)
            for from_main in (main_first, not main_first):
                block = self._from_main() if from_main else self._from_small()
                if block is not None:
                    return block
        return None

    def _from_small(self) -> int | None:
        while (block := self._small.pop()) is not None:
            if self._uses[block] < USES_TO_STAY:
                self._ghosts.add(block)
                del self._uses[block]
                return block
            self._uses[block] = 0
            self._main.append(block)
        return None

    def _from_main(self) -> int | None:
        while (block := self._main.pop()) is not None:
            if not self._uses[block]:
                del self._uses[block]
                return block
            self._uses[block] = min(self._uses[block], MOST_USES) - 1
            self._main.append(block)
        return None

"""Eviction policies that are not bundled, each as a user would write it."""

from __future__ import annotations

from pagesim.eviction import CacheView, EvictionPolicy, Queue, RankedPolicy


class Clock(EvictionPolicy):
    """FIFO with reinsertion: a block that was used since it was looked at goes to the end instead."""

    def __init__(self, cache: CacheView) -> None:
        super().__init__(cache)
        self._queue = Queue(cache)
        self._used: set[int] = set()

    def hit(self, block: int) -> None:
        self._used.add(block)

    def insert(self, block: int) -> None:
        self._queue.append(block)

    def freed(self, block: int) -> None:
        self._queue.freed(block)

    def evict(self) -> int | None:
        while (block := self._queue.pop()) is not None and block in self._used:
            self._used.discard(block)
            self._queue.append(block)
        return block


class Lru2(RankedPolicy):
    """Blocks used once go first, in the order of that use; then by the last use but one."""

    def __init__(self, cache: CacheView) -> None:
        super().__init__(cache)
        self._used: dict[int, int] = {}

    def key(self, block: int) -> tuple[int, int]:
        before = self._used.get(block) if block in self.ranking else None
        self._used[block] = self.ticks
        return (0, self.ticks) if before is None else (1, before)


class LengthAware(RankedPolicy):
    """The deepest block goes first, of several the one used longest ago."""

    def key(self, block: int) -> tuple[int, int]:
        return -self.cache.depth[block], self.ticks


PLUGINS: dict[str, type[EvictionPolicy]] = {"clock": Clock, "lru-2": Lru2, "lengthaware": LengthAware}
"""By their names in the golden tables."""

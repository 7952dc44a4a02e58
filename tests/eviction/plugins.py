"""Eviction policies that are not bundled, each as a user would write it."""

from __future__ import annotations

from pagesim.eviction import CacheView, EvictionPolicy, Queue, Ranking


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


class Lru2(EvictionPolicy):
    """Blocks used once go first, in the order of that use; then by the last use but one."""

    def __init__(self, cache: CacheView) -> None:
        super().__init__(cache)
        self._ranking = Ranking(cache)
        self._used: dict[int, int] = {}
        self._ticks = 0

    def hit(self, block: int) -> None:
        self._ranking.put(block, (1, self._used[block]))
        self._tick(block)

    def insert(self, block: int) -> None:
        self._tick(block)
        self._ranking.put(block, (0, self._ticks))

    def freed(self, block: int) -> None:
        self._ranking.freed(block)

    def evict(self) -> int | None:
        return self._ranking.pop()

    def _tick(self, block: int) -> None:
        self._ticks += 1
        self._used[block] = self._ticks


class LengthAware(EvictionPolicy):
    """The deepest block goes first, of several the one used longest ago."""

    def __init__(self, cache: CacheView) -> None:
        super().__init__(cache)
        self._ranking = Ranking(cache)
        self._ticks = 0

    def hit(self, block: int) -> None:
        self.insert(block)

    def insert(self, block: int) -> None:
        self._ticks += 1
        self._ranking.put(block, (-self.cache.depth[block], self._ticks))

    def freed(self, block: int) -> None:
        self._ranking.freed(block)

    def evict(self) -> int | None:
        return self._ranking.pop()


PLUGINS: dict[str, type[EvictionPolicy]] = {"clock": Clock, "lru-2": Lru2, "lengthaware": LengthAware}
"""By their names in the golden tables."""

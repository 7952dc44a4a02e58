"""Orders of blocks that find the first evictable block."""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from heapq import heappop, heappush
from typing import Any

from pagesim.eviction.policy import CacheView, EvictionPolicy
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Ranking:
    """Blocks ranked by a key; finds the evictable block with the smallest key in O(log n).

    Args:
        cache: knows which blocks are evictable.

    Attributes:
        keys: unique keys of the ranked blocks.
    """

    __slots__ = ("_free", "_heap", "keys")

    def __init__(self, cache: CacheView) -> None:
        self._free = cache.free
        self._heap: list[tuple[Any, int]] = []
        self.keys: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self.keys)

    def __contains__(self, block: int) -> bool:
        return block in self.keys

    def put(self, block: int, key: Any) -> None:
        """Set or change the key of a block."""
        self.keys[block] = key
        if block in self._free:
            heappush(self._heap, (key, block))

    def freed(self, block: int) -> None:
        """Handle a block that becomes evictable, if it is ranked here."""
        if block in self.keys:
            heappush(self._heap, (self.keys[block], block))

    def remove(self, block: int) -> None:
        """Forget a block."""
        del self.keys[block]

    def first(self) -> int | None:
        """Return the evictable block with the smallest key; None if there is none."""
        heap, keys, free = self._heap, self.keys, self._free
        while heap:
            key, block = heap[0]
            if keys.get(block) == key and block in free:
                return block
            heappop(heap)
        return None

    def pop(self) -> int | None:
        """Remove and return the block that ``first`` returns."""
        block = self.first()
        if block is not None:
            del self.keys[block]
        return block


@mypyc_attr(allow_interpreted_subclasses=True)
class Queue(Ranking):
    """Blocks in the order in which they were appended."""

    __slots__ = ("_appended",)

    def __init__(self, cache: CacheView) -> None:
        super().__init__(cache)
        self._appended = 0

    def append(self, block: int) -> None:
        """Add a block at the end, or move it there."""
        self._appended += 1
        self.put(block, self._appended)


@mypyc_attr(allow_interpreted_subclasses=True)
class RankedPolicy(EvictionPolicy):
    """Evicts the block with the smallest key; each use of a block sets a new key.

    Attributes:
        ranking: the cached blocks.
        ticks: number of uses so far, including the current one.
    """

    __slots__ = ("ranking", "ticks")

    def __init__(self, cache: CacheView) -> None:
        super().__init__(cache)
        self.ranking = Ranking(cache)
        self.ticks = 0

    @abstractmethod
    def key(self, block: int) -> Any:
        """Return the unique key of a block that is being used now."""

    def hit(self, block: int) -> None:
        self.insert(block)

    def insert(self, block: int) -> None:
        self.ticks += 1
        self.ranking.put(block, self.key(block))

    def freed(self, block: int) -> None:
        self.ranking.freed(block)

    def evict(self) -> int | None:
        return self.ranking.pop()


class Ghosts:
    """Names of evicted blocks; the oldest are forgotten first.

    Args:
        most: maximum number of names.
    """

    __slots__ = ("_most", "_names")

    def __init__(self, most: int) -> None:
        self._most = most
        self._names: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._names)

    def add(self, block: int) -> None:
        """Remember an evicted block."""
        if block in self._names:
            return
        while self._names and len(self._names) >= self._most:
            self._names.popitem(last=False)
        if self._most > 0:
            self._names[block] = None

    def take(self, block: int) -> bool:
        """Forget a block, and return whether it was remembered."""
        if block not in self._names:
            return False
        del self._names[block]
        return True

    def drop_oldest(self) -> None:
        """Forget the block that was evicted first, if there is any."""
        if self._names:
            self._names.popitem(last=False)

"""SIEVE: a hand moves over a FIFO queue and evicts the first block not used since it last passed."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from pagesim.eviction.policy import CacheView, EvictionPolicy
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Sieve(EvictionPolicy):
    """Evicts the first unused block from the hand on; used blocks that it passes are marked unused.

    Blocks stay in the order in which they were cached. The hand moves from the oldest to the newest, then
    starts over. It skips blocks that are not evictable without changing them.

    Source: Y. Zhang et al., "SIEVE is simpler than LRU", NSDI'24.
    """

    __slots__ = ("_ahead", "_behind", "_hand", "_newest", "_places", "_used")

    def __init__(self, cache: CacheView) -> None:
        super().__init__(cache)
        self._places: dict[int, int] = {}  # positions in the queue, in order
        self._used: set[int] = set()
        self._newest = 0
        self._hand = 0
        # Blocks that may be evictable: from the hand on, as a heap, and before it.
        self._ahead: list[tuple[int, int]] = []
        self._behind: list[tuple[int, int]] = []

    def hit(self, block: int) -> None:
        self._used.add(block)

    def insert(self, block: int) -> None:
        self._newest += 1
        self._places[block] = self._newest
        if block in self.cache.free:
            self.freed(block)

    def freed(self, block: int) -> None:
        place = self._places[block]
        if place >= self._hand:
            heappush(self._ahead, (place, block))
        else:
            self._behind.append((place, block))

    def evict(self) -> int | None:
        if not self.cache.free:
            return None  # the hand does not move
        last = (0, -1)
        while True:
            if not self._ahead:
                self._begin_anew()
                last = (0, -1)
            entry = heappop(self._ahead)
            place, block = entry
            if entry == last or self._places.get(block) != place or block not in self.cache.free:
                continue  # a duplicate entry, or a block that was evicted or is in use again
            last = entry
            self._hand = place + 1
            if block in self._used:
                self._used.discard(block)
                self._behind.append(entry)
                continue
            newest = next(reversed(self._places))
            del self._places[block]
            if block == newest:
                self._begin_anew()
            return block

    def _begin_anew(self) -> None:
        """Move the hand to the oldest block."""
        self._ahead += self._behind
        heapify(self._ahead)
        self._behind = []
        self._hand = 0

"""SIEVE: a hand passes over a FIFO queue, and the first block that was not used since it passed goes."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from pagesim.eviction.policy import CacheView, EvictionPolicy
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Sieve(EvictionPolicy):
    """Evicts the first unused block from the hand on; those it passes count as unused from then on.

    Blocks stay in the order in which they were cached. The hand goes from the oldest to the newest and begins
    anew. Blocks that may not go are passed over as they are.

    Source: Y. Zhang et al., "SIEVE is simpler than LRU", NSDI'24.
    """

    __slots__ = ("_ahead", "_behind", "_hand", "_newest", "_places", "_used")

    def __init__(self, cache: CacheView) -> None:
        super().__init__(cache)
        self._places: dict[int, int] = {}  # in the queue; a dict keeps their order
        self._used: set[int] = set()
        self._newest = 0
        self._hand = 0
        # Blocks that may have been free, from the hand on as a heap, and before it.
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
            return None  # and the hand stays where it is
        last = (0, -1)
        while True:
            if not self._ahead:
                self._begin_anew()
                last = (0, -1)
            entry = heappop(self._ahead)
            place, block = entry
            if entry == last or self._places.get(block) != place or block not in self.cache.free:
                continue  # it was told twice, is gone, or is in use again
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
        """Let the hand point to the oldest block."""
        self._ahead += self._behind
        heapify(self._ahead)
        self._behind = []
        self._hand = 0

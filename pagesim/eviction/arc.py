"""ARC: recent and frequent blocks share the capacity, adapting to the misses of each."""

from __future__ import annotations

from pagesim.eviction.policy import CacheView, EvictionPolicy
from pagesim.eviction.ranking import Ghosts, Queue
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Arc(EvictionPolicy):
    """The adaptive replacement cache as published: blocks used once, blocks used more often, ghosts of both.

    The ``arc`` of vLLM's host tier is a different rule: see ``pagesim.kvcache.tiers.arc``.

    Source: N. Megiddo and D. S. Modha, "ARC", FAST'03, cases I to IV.
    """

    __slots__ = ("_frequent", "_frequent_ghosts", "_missed", "_recent", "_recent_ghosts", "_target")

    def __init__(self, cache: CacheView) -> None:
        super().__init__(cache)
        self._recent, self._frequent = Queue(cache), Queue(cache)  # T1, T2
        unbounded = 2 * cache.capacity + 2
        self._recent_ghosts, self._frequent_ghosts = Ghosts(unbounded), Ghosts(unbounded)  # B1, B2
        self._target = 0.0
        self._missed = ""  # which ghost list contained the missed block

    def hit(self, block: int) -> None:
        if block in self._recent:
            self._recent.remove(block)
        self._frequent.append(block)

    def miss(self, block: int) -> bool:
        recent, frequent = len(self._recent_ghosts), len(self._frequent_ghosts)
        self._missed = ""
        if self._recent_ghosts.take(block):
            self._target = min(self._target + max(frequent / recent, 1), self.cache.capacity)
            self._missed = "recent"
        elif self._frequent_ghosts.take(block):
            self._target = max(self._target - max(recent / frequent, 1), 0)
            self._missed = "frequent"
        return True

    def insert(self, block: int) -> None:
        (self._frequent if self._missed else self._recent).append(block)
        self._missed = ""

    def freed(self, block: int) -> None:
        self._recent.freed(block)
        self._frequent.freed(block)

    def evict(self) -> int | None:
        capacity = self.cache.capacity
        recent, ghosts = len(self._recent), len(self._recent_ghosts)
        if self._missed:
            return self._replace()
        if recent + ghosts + 1 > capacity:
            if ghosts:
                self._recent_ghosts.drop_oldest()
            else:
                block = self._recent.pop()
                if block is not None:
                    return block
        elif recent + ghosts + len(self._frequent) + len(self._frequent_ghosts) >= 2 * capacity:
            self._frequent_ghosts.drop_oldest()
        return self._replace()

    def _replace(self) -> int | None:
        """Evict from the recent or the frequent blocks, or from the others if none of these is evictable."""
        recent, target = len(self._recent), self._target
        over = recent > target or (recent == target and self._missed == "frequent")
        pairs = [(self._recent, self._recent_ghosts), (self._frequent, self._frequent_ghosts)]
        if not ((recent > 0 and over) or not len(self._frequent)):
            pairs.reverse()
        for queue, ghosts in pairs:
            block = queue.pop()
            if block is not None:
                ghosts.add(block)
                return block
        return None

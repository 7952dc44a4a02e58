"""vLLM's ARC: blocks used by one request and by several share the capacity, adapting to misses."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Generic, TypeVar

from pagesim.eviction.policy import CacheView, EvictionPolicy

Key = TypeVar("Key", bound=Hashable)


class ArcByRequest(Generic[Key]):
    """An adaptive replacement cache whose order changes when a request has finished.

    A block is *recent* until a request that used it without having written it has finished; from then on it
    is *frequent*. The names of evicted blocks of both kinds are kept as *ghosts*. A miss on a ghost adjusts
    the target, the number of blocks that may be recent.

    Source: vLLM 0.33.0, v1/kv_offload/cpu/policies/arc.py.

    Args:
        capacity: capacity in blocks, and the maximum number of ghosts of each kind.

    Attributes:
        recent, frequent: blocks of each kind, in eviction order.
    """

    __slots__ = ("_capacity", "_frequent_ghosts", "_recent_ghosts", "_target", "frequent", "recent")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._target = 0.0
        self.recent: OrderedDict[Key, None] = OrderedDict()
        self.frequent: OrderedDict[Key, None] = OrderedDict()
        self._recent_ghosts: OrderedDict[Key, None] = OrderedDict()
        self._frequent_ghosts: OrderedDict[Key, None] = OrderedDict()

    def __contains__(self, block: Key) -> bool:
        return block in self.recent or block in self.frequent

    def missed(self, block: Key) -> None:
        """Adjust the target if a missed block is a ghost."""
        recent, frequent = self._recent_ghosts, self._frequent_ghosts
        if block in recent:
            step = max(1, len(frequent) / len(recent))
            self._target = min(self._target + step, self._capacity)
            recent.move_to_end(block)
        elif block in frequent:
            step = max(1, len(recent) / len(frequent))
            self._target = max(self._target - step, 0)
            frequent.move_to_end(block)

    def inserted(self, block: Key) -> None:
        """Add a block that is now cached; it is no longer a ghost."""
        self.recent[block] = None
        self._recent_ghosts.pop(block, None)
        self._frequent_ghosts.pop(block, None)

    def forgotten(self, block: Key) -> None:
        """Forget a block that was discarded for another reason than lack of space."""
        del (self.recent if block in self.recent else self.frequent)[block]

    def over(self, blocks: Iterable[Key], reused: Collection[Key]) -> None:
        """Reorder the blocks of a request that has finished.

        Args:
            blocks: cached blocks that it used, in eviction order.
            reused: blocks that it used without having written them; may include others than ``blocks``.
        """
        for block in blocks:
            if block in self.frequent:
                self.frequent.move_to_end(block)
            elif block in reused:
                del self.recent[block]
                self.frequent[block] = None
            else:
                self.recent.move_to_end(block)

    def choose(self, blocks: int, may_go: Callable[[Key], object]) -> list[Key] | None:
        """Return ``blocks`` evictable blocks and forget them; None, forgetting none, if there are too few."""
        recent = (block for block in self.recent if may_go(block))
        frequent = (block for block in self.frequent if may_go(block))
        left = len(self.recent)
        chosen: list[Key] = []
        for _ in range(blocks):
            block = next(recent, None) if left >= int(self._target) else None
            if block is None:
                block = next(frequent, None)
            if block is None:
                block = next(recent, None)
            if block is None:
                return None
            left -= block in self.recent
            chosen.append(block)
        for block in chosen:
            if block in self.recent:
                del self.recent[block]
                self._recent_ghosts[block] = None
            else:
                del self.frequent[block]
                self._frequent_ghosts[block] = None
        for ghosts in (self._recent_ghosts, self._frequent_ghosts):
            while len(ghosts) > self._capacity:
                ghosts.popitem(last=False)
        return chosen


class VllmArc(EvictionPolicy):
    """The ``arc`` of vLLM's host tier, with requests served one after another."""

    __slots__ = ("_order",)

    def __init__(self, cache: CacheView) -> None:
        super().__init__(cache)
        self._order: ArcByRequest[int] = ArcByRequest(cache.capacity)

    def miss(self, block: int) -> bool:
        self._order.missed(block)
        return True

    def insert(self, block: int) -> None:
        self._order.inserted(block)

    def freed(self, block: int) -> None:
        return

    def over(self, found: Sequence[int], inserted: Sequence[int]) -> None:
        self._order.over([*reversed(inserted), *reversed(found)], set(found))

    def evict(self) -> int | None:
        chosen = self._order.choose(1, self.cache.free.__contains__)
        return None if chosen is None else chosen[0]

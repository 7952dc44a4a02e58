"""The interface of eviction policies: what they learn about a prefix cache, and which block they evict."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import inf

from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class CacheView:
    """What a policy may know about its cache and the current request; written by the cache, read by policies.

    Attributes:
        capacity: capacity in blocks.
        free: evictable blocks: cached, not in use, and not followed by a cached block.
        depth: for each block, the number of blocks before it in its prompt.
        recompute: for each block, the FLOPs to recompute it if all blocks before it are cached, relative to
            those of its linear layers.
        now: arrival time of the request, in seconds.
        next_request: number of the next request that uses the current block; infinite if none does. Only
            offline policies read it.
        priority: priority of the request's blocks, from 0 to 100; TensorRT-LLM's default is 35.
        duration: seconds for which the priority holds, or the blocks are pinned; None for no limit.
    """

    __slots__ = ("capacity", "depth", "duration", "free", "next_request", "now", "priority", "recompute")

    def __init__(self, capacity: int, depth: Sequence[int], recompute: Sequence[float]) -> None:
        self.capacity = capacity
        self.free: set[int] = set()
        self.depth = depth
        self.recompute = recompute
        self.now = 0.0
        self.next_request: float = inf
        self.priority = 35
        self.duration: float | None = None


@mypyc_attr(allow_interpreted_subclasses=True)
class EvictionPolicy(ABC):
    """An eviction order for the blocks of a cache. The cache keeps the blocks, the policy only names them.

    Args:
        cache: the information available to the policy; the cache is still empty.
    """

    __slots__ = ("cache",)

    def __init__(self, cache: CacheView) -> None:
        self.cache = cache

    def hit(self, block: int) -> None:
        """Handle a request's use of a cached block."""
        return

    def miss(self, block: int) -> bool:
        """Handle a request's use of a block that is not cached; called before room is made for it.

        Returns:
            Whether to cache the block. If not, the rest of its prompt is not cached, either.
        """
        return True

    @abstractmethod
    def insert(self, block: int) -> None:
        """Add a block of the current request, which is now cached."""

    @abstractmethod
    def freed(self, block: int) -> None:
        """Handle a cached block that becomes evictable."""

    def over(self, found: Sequence[int], inserted: Sequence[int]) -> None:
        """Handle the end of a request.

        Args:
            found: its blocks that were hits, first to last.
            inserted: its blocks after those, which were cached for it.
        """
        return

    @abstractmethod
    def evict(self) -> int | None:
        """Return the evictable block to evict next, and forget it; None if no block is evictable."""

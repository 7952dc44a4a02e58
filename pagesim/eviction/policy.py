"""The contract of an eviction policy: what it is told of a prefix cache, and which block it lets go."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import inf

from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class CacheView:
    """What a policy may know of its cache, and of the request under way. The cache writes it, a policy reads.

    Attributes:
        capacity: blocks.
        free: the blocks that may go: cached, not in use, and without a cached block behind them.
        depth: of each block, the blocks before it in its prompt.
        recompute: of each block, the FLOPs to compute it again if all before it are there, in units of those
            of its linear layers.
        now: when the request arrived, in seconds.
        next_request: the number of the next request that asks for the block at hand; infinite where none
            does. Only an offline policy reads it.
        priority: of the request's blocks, from 0 to 100; TensorRT-LLM's default is 35.
        duration: seconds for which that holds, or for which its blocks are pinned; None without an end.
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
    """An order in which blocks of a cache go. The cache keeps the blocks, the policy only names them.

    Args:
        cache: what it may know; empty yet.
    """

    __slots__ = ("cache",)

    def __init__(self, cache: CacheView) -> None:
        self.cache = cache

    def hit(self, block: int) -> None:
        """A request asks for a block that is cached."""
        return

    def miss(self, block: int) -> bool:
        """A request asks for a block that is not cached; told before there is room for it.

        Returns:
            Whether the block is to be cached. Where it is not, the rest of its prompt is not, either.
        """
        return True

    @abstractmethod
    def insert(self, block: int) -> None:
        """A block of the request under way is cached from now on."""

    @abstractmethod
    def freed(self, block: int) -> None:
        """A cached block may go from now on."""

    def over(self, found: Sequence[int], inserted: Sequence[int]) -> None:
        """A request is over.

        Args:
            found: its blocks that were cached when it asked for them, first to last.
            inserted: those that were cached for it, behind them.
        """
        return

    @abstractmethod
    def evict(self) -> int | None:
        """Name the block that goes next, one of those that may, and forget it; None where none may."""

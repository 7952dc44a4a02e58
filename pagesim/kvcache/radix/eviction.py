"""Which leaf of a radix tree is evicted first."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

from pagesim.setup.compiled import mypyc_attr

if TYPE_CHECKING:  # the tree imports this module
    from pagesim.kvcache.radix.tree import Node

EvictionPolicy = Literal["lru", "lfu", "fifo", "mru", "filo"]

_PRIORITIES: dict[EvictionPolicy, Callable[[Node], Any]] = {
    "lru": attrgetter("last_access"),
    "lfu": attrgetter("hit_count", "last_access"),
    "fifo": attrgetter("created"),
    "mru": lambda node: -node.last_access,
    "filo": lambda node: -node.created,
}


@mypyc_attr(allow_interpreted_subclasses=True)
class EvictionOrder:
    """The evictable leaves; the one with the smallest priority is evicted first.

    Each leaf has at most one entry. A touch does not move it: an entry popped with an outdated priority is
    pushed back. That is exact if touches only raise priorities; ``mru`` recomputes all of them instead.

    Args:
        policy: least recently used, least frequently used, first in, most recently used, or last in.
        may_go: returns whether a leaf can be evicted now; by default, from the device.
    """

    __slots__ = ("_heap", "_looks_anew", "_may_go", "_numbers", "_priority", "_queued")

    def __init__(
        self, policy: EvictionPolicy, may_go: Callable[[Node], bool] = attrgetter("is_evictable")
    ) -> None:
        self._priority = _PRIORITIES[policy]
        self._may_go = may_go
        self._looks_anew = policy == "mru"
        self._queued: set[Node] = set()
        self._heap: list[tuple[Any, int, Node]] = []
        self._numbers = count()  # breaks ties, so that nodes are never compared

    def offer(self, node: Node) -> None:
        """Add a leaf that may be evicted."""
        if node not in self._queued:
            self._queued.add(node)
            heappush(self._heap, (self._priority(node), next(self._numbers), node))

    def pop(self) -> Node | None:
        """Remove and return the leaf to evict next; None if none is left."""
        heap, priority = self._heap, self._priority
        if self._looks_anew:
            heap[:] = [(priority(node), number, node) for _, number, node in heap]
            heapify(heap)
        while heap:
            known, _, node = heappop(heap)
            self._queued.remove(node)
            if not self._may_go(node):
                continue
            if priority(node) == known:
                return node
            self.offer(node)
        return None

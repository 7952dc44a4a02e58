"""LRU by chunk: the chunk that was used longest ago goes first, whichever request it is of."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence, Set
from itertools import islice

from pagesim.kvcache.tiers.eviction import ChunkKey, Eviction, Use


class LruByChunk(Eviction):
    """See `Eviction`. The chunks of a request are used in token order, so its head goes before its tail.

    A tail is of no use without its head: `LruByRequest` keeps the order the other way round. This one is
    there to compare.
    """

    __slots__ = ("_order",)

    def __init__(self) -> None:
        self._order: OrderedDict[ChunkKey, None] = OrderedDict()

    def touched(self, use: Use, keys: Sequence[ChunkKey], evictable: Set[ChunkKey]) -> None:
        for key in keys:
            self._order.move_to_end(key)

    def inserted(self, use: Use, keys: Sequence[ChunkKey]) -> None:
        for key in keys:
            self._order[key] = None

    def forgotten(self, key: ChunkKey) -> None:
        del self._order[key]

    def finished(self, use: Use, keys: Sequence[ChunkKey], evictable: Set[ChunkKey]) -> None:
        return

    def choose(
        self, count: int, evictable: Set[ChunkKey], spared: Collection[ChunkKey]
    ) -> list[ChunkKey] | None:
        chosen = list(islice((key for key in self._order if key in evictable and key not in spared), count))
        if len(chosen) < count:
            return None
        for key in chosen:
            del self._order[key]
        return chosen

    def knows(self) -> Set[ChunkKey]:
        return self._order.keys()

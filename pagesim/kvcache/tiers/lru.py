"""LRU by request: the chunks of the request that was active longest ago go first, and of those the tail."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from heapq import heappop, heappush

from pagesim.kvcache.tiers.eviction import ChunkKey, Eviction, Use

Rank = tuple[int, int]
"""When a chunk was used last, and the tokens up to its end, as a negative number; the smallest goes first."""


class LruByRequest(Eviction):
    """See `Eviction`.

    A request's chunks have the rank of its first use of the tier while it lives, and fresh ranks, from tail
    to head, when it is over.

    Source: vLLM 0.33.0, v1/kv_offload/cpu/policies/lru.py.
    """

    __slots__ = ("_clock", "_heap", "_ranks")

    def __init__(self) -> None:
        self._clock = 0
        self._ranks: dict[ChunkKey, Rank] = {}
        # Evictable chunks, the next to go first; an entry whose rank is not the chunk's own is stale.
        self._heap: list[tuple[Rank, ChunkKey]] = []

    def touched(self, use: Use, keys: Sequence[ChunkKey], evictable: Set[ChunkKey]) -> None:
        rank = self._rank_of(use)
        for key in keys:
            self._raise(key, (rank, -key[0]), evictable)

    def inserted(self, use: Use, keys: Sequence[ChunkKey]) -> None:
        if keys:
            rank = self._rank_of(use)
            for key in keys:
                self._ranks[key] = rank, -key[0]

    def freed(self, key: ChunkKey) -> None:
        heappush(self._heap, (self._ranks[key], key))

    def forgotten(self, key: ChunkKey) -> None:
        del self._ranks[key]

    def finished(self, use: Use, keys: Sequence[ChunkKey], evictable: Set[ChunkKey]) -> None:
        for key in keys:
            self._clock += 1
            self._raise(key, (self._clock, 0), evictable)

    def choose(
        self, count: int, evictable: Set[ChunkKey], spared: Collection[ChunkKey]
    ) -> list[ChunkKey] | None:
        heap, ranks = self._heap, self._ranks
        chosen: dict[ChunkKey, None] = {}
        passed: list[tuple[Rank, ChunkKey]] = []
        while heap and len(chosen) < count:
            entry = heappop(heap)
            rank, key = entry
            if key not in evictable or ranks[key] != rank or key in chosen:
                continue
            if key in spared:
                passed.append(entry)
            else:
                chosen[key] = None
        for entry in passed:
            heappush(heap, entry)
        if len(chosen) < count:
            for key in chosen:
                self.freed(key)
            return None
        for key in chosen:
            del ranks[key]
        return list(chosen)

    def knows(self) -> Set[ChunkKey]:
        return self._ranks.keys()

    def _rank_of(self, use: Use) -> int:
        if not use.rank:
            self._clock += 1
            use.rank = self._clock
        return use.rank

    def _raise(self, key: ChunkKey, rank: Rank, evictable: Set[ChunkKey]) -> None:
        if self._ranks[key] < rank:
            self._ranks[key] = rank
            if key in evictable:
                self.freed(key)

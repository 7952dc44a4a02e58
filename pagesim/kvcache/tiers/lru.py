"""LRU by request: the chunks of the request that was active longest ago go first, and of those the tail."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from itertools import islice

from pagesim.kvcache.tiers.eviction import ChunkKey, Eviction, Use


class Rank:
    """Chunks of one rank: those that one request used, while it lives or when it was over.

    Attributes:
        number: ranks with smaller ones go first.
        keys: the chunks, that which goes first at the end.
        last: the most tokens up to the end of any that was added.
        in_order: whether they stand in the order in which they go.
        lives: whether the request may add others.
    """

    __slots__ = ("in_order", "keys", "last", "lives", "number")

    def __init__(self, number: int, keys: Sequence[ChunkKey] | None = None) -> None:
        self.number = number
        self.keys: dict[ChunkKey, None] = dict.fromkeys(keys or ())
        self.lives = keys is None
        self.last = 0
        self.in_order = True

    def add(self, key: ChunkKey) -> None:
        """Add a chunk of a request that lives."""
        self.keys[key] = None
        if key[0] > self.last:
            self.last = key[0]
        else:
            self.in_order = False

    def settle(self) -> None:
        """Put the chunks into the order in which they go: the tail first, and there the first group."""
        if not self.in_order:
            self.keys = dict.fromkeys(sorted(self.keys, key=lambda key: (key[0], -key[1], -key[2])))
            self.in_order = True


class LruByRequest(Eviction):
    """See `Eviction`.

    A request's chunks have the rank of its first use of the tier while it lives, and a fresh one when it is
    over; a chunk of several requests has the greatest of theirs.

    Source: vLLM 0.33.0, v1/kv_offload/cpu/policies/lru.py.
    """

    __slots__ = ("_clock", "_rank_of", "_ranks")

    def __init__(self) -> None:
        self._clock = 0
        self._rank_of: dict[ChunkKey, Rank] = {}
        # By number, in order, since each new one is the greatest. That of a request stays until it is over.
        self._ranks: dict[int, Rank] = {}

    def touched(self, use: Use, keys: Sequence[ChunkKey], evictable: Set[ChunkKey]) -> None:
        rank, rank_of = self._of(use), self._rank_of
        for key in keys:
            old = rank_of[key]
            if old.number < rank.number:
                del old.keys[key]
                rank.add(key)
                rank_of[key] = rank

    def inserted(self, use: Use, keys: Sequence[ChunkKey]) -> None:
        if keys:
            rank, rank_of = self._of(use), self._rank_of
            for key in keys:
                rank.add(key)
                rank_of[key] = rank

    def forgotten(self, key: ChunkKey) -> None:
        del self._rank_of.pop(key).keys[key]

    def finished(self, use: Use, keys: Sequence[ChunkKey], evictable: Set[ChunkKey]) -> None:
        rank_of = self._rank_of
        for key in keys:
            del rank_of[key].keys[key]
        if keys:
            rank_of.update(dict.fromkeys(keys, self._new(keys[::-1])))
        old = self._ranks.get(use.rank)
        if old is not None and not old.keys:
            del self._ranks[use.rank]

    def choose(
        self, count: int, evictable: Set[ChunkKey], spared: Collection[ChunkKey]
    ) -> list[ChunkKey] | None:
        chosen: list[ChunkKey] = []
        passed: list[Rank] = []
        for rank in self._ranks.values():
            rank.settle()
            passed.append(rank)
            may_go = (key for key in reversed(rank.keys) if key in evictable and key not in spared)
            chosen += islice(may_go, count - len(chosen))
            if len(chosen) == count:
                break
        if len(chosen) < count:
            return None
        for key in chosen:
            del self._rank_of.pop(key).keys[key]
        for rank in passed:
            if not rank.keys and not rank.lives:
                del self._ranks[rank.number]
        return chosen

    def knows(self) -> Set[ChunkKey]:
        return self._rank_of.keys()

    def _of(self, use: Use) -> Rank:
        """Return the rank of a request that lives."""
        rank = self._ranks.get(use.rank)
        if rank is None:
            rank = self._new()
            use.rank = rank.number
        return rank

    def _new(self, keys: Sequence[ChunkKey] | None = None) -> Rank:
        self._clock += 1
        rank = self._ranks[self._clock] = Rank(self._clock, keys)
        return rank

"""No eviction: what is in a tier stays there until it is given up, as in a swap space."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set

from pagesim.kvcache.tiers.eviction import ChunkKey, Eviction, Use


class Never(Eviction):
    """See `Eviction`. There is room for a chunk only where one was given up."""

    __slots__ = ("_keys",)

    def __init__(self) -> None:
        self._keys: dict[ChunkKey, None] = {}

    def touched(self, use: Use, keys: Sequence[ChunkKey], evictable: Set[ChunkKey]) -> None:
        return

    def inserted(self, use: Use, keys: Sequence[ChunkKey]) -> None:
        self._keys.update(dict.fromkeys(keys))

    def finished(self, use: Use, keys: Sequence[ChunkKey], evictable: Set[ChunkKey]) -> None:
        return

    def forgotten(self, key: ChunkKey) -> None:
        del self._keys[key]

    def choose(
        self, count: int, evictable: Set[ChunkKey], spared: Collection[ChunkKey]
    ) -> list[ChunkKey] | None:
        return [] if count == 0 else None

    def knows(self) -> Set[ChunkKey]:
        return self._keys.keys()

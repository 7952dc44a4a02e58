"""Eviction: which chunk of a tier goes when room is needed for others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence, Set

ChunkKey = tuple[int, int, int]
"""Names a chunk: the tokens up to its end, its KV group, and the name of its content (`runs.Content`)."""


class Use:
    """What one request did with the chunks of a tier.

    Attributes:
        rank: when it first did anything, where an eviction counts that; 0 for never.
        seen: chunks that it read, wrote, or offered where they were there.
        inserted: those that it had written.
        reused: those that were there before it came.
        missed: those that it offered and that were not there.
    """

    __slots__ = ("inserted", "missed", "rank", "reused", "seen")

    def __init__(self) -> None:
        self.rank = 0
        self.seen: set[ChunkKey] = set()
        self.inserted: set[ChunkKey] = set()
        self.reused: set[ChunkKey] = set()
        self.missed: set[ChunkKey] = set()


class Eviction(ABC):
    """An order in which chunks go; the store says what happens to them.

    Where a method is told what is evictable, that is the store's own set: it is looked at, never changed.
    """

    @abstractmethod
    def touched(self, use: Use, keys: Sequence[ChunkKey], evictable: Set[ChunkKey]) -> None:
        """A request used chunks for the first time that are there."""

    @abstractmethod
    def inserted(self, use: Use, keys: Sequence[ChunkKey]) -> None:
        """Chunks are about to be written, for a request."""

    def missed(self, use: Use, keys: Sequence[ChunkKey]) -> None:
        """A request offers chunks that are not there; told before there is room for them."""
        return

    @abstractmethod
    def forgotten(self, key: ChunkKey) -> None:
        """An evictable chunk is given up, and not for want of room."""

    @abstractmethod
    def finished(self, use: Use, keys: Sequence[ChunkKey], evictable: Set[ChunkKey]) -> None:
        """A request is over that used these chunks, which are there; its tail comes first."""

    @abstractmethod
    def choose(
        self, count: int, evictable: Set[ChunkKey], spared: Collection[ChunkKey]
    ) -> list[ChunkKey] | None:
        """Choose so many evictable chunks, none of the spared, and forget them.

        Returns:
            The chunks, first that goes first; None where there are not so many, and none is forgotten.
        """

    @abstractmethod
    def knows(self) -> Set[ChunkKey]:
        """Return the chunks that it has in its order."""

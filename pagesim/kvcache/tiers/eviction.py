"""Eviction: which chunk of a tier is evicted when room is needed for others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from pagesim.kvcache.tiers.chunks import ChunkRun
from pagesim.setup.compiled import mypyc_attr

MayGo = Callable[[ChunkRun], list[ChunkRun]]
"""Returns the evictable parts of a run, in order."""


@mypyc_attr(allow_interpreted_subclasses=True)
class RequestUse:
    """What one request did with the chunks of a tier.

    Attributes:
        rank: time of its first use of the tier, for evictions that track it; 0 for never.
        noted: sets of chunks that an eviction records for the request, by name.
    """

    __slots__ = ("noted", "rank")

    def __init__(self) -> None:
        self.rank = 0
        self.noted: dict[str, set[ChunkRun]] = {}


@mypyc_attr(allow_interpreted_subclasses=True)
class Eviction(ABC):
    """An eviction order of chunks; the store reports what happens to them."""

    def touched(self, use: RequestUse, runs: Sequence[ChunkRun]) -> None:
        """Handle a request's use of present chunks; ``runs`` is empty if all that it offers is missing."""
        return

    @abstractmethod
    def inserted(self, use: RequestUse, runs: Sequence[ChunkRun]) -> None:
        """Handle chunks that are about to be written for a request."""

    def missed(self, use: RequestUse, runs: Sequence[ChunkRun]) -> None:
        """Handle missing chunks that a request offers; called before room is made for them."""
        return

    def refused(self, use: RequestUse, runs: Sequence[ChunkRun]) -> None:
        """Handle offered chunks for which there is no room; called after ``missed`` and ``touched``."""
        return

    def reused(self, use: RequestUse, runs: Sequence[ChunkRun]) -> None:
        """Handle ready chunks that a request reads or offers."""
        return

    def idle(self, runs: Sequence[ChunkRun]) -> None:
        """Handle chunks that become evictable, because they are ready and not being read."""
        return

    def pinned(self, runs: Sequence[ChunkRun]) -> None:
        """Handle chunks that can no longer be evicted, because they are being read."""
        return

    @abstractmethod
    def forgotten(self, run: ChunkRun) -> None:
        """Handle evictable chunks that are about to be discarded for another reason than lack of room."""

    def finished(self, use: RequestUse) -> None:
        """Handle the end of a request."""
        return

    @abstractmethod
    def choose(self, chunks: int, may_go: MayGo) -> list[ChunkRun] | None:
        """Choose ``chunks`` evictable chunks and forget them.

        Returns:
            The chunks in eviction order, each run from its last chunk on. None, with none forgotten, if too
            few chunks are evictable.
        """

    @abstractmethod
    def knows(self) -> set[ChunkRun]:
        """Return the chunks in the eviction order, each as a run of its own."""

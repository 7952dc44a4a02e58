"""Eviction: which chunk of a tier goes when room is needed for others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from pagesim.kvcache.tiers.chunks import ChunkRun
from pagesim.setup.compiled import mypyc_attr

MayGo = Callable[[ChunkRun], list[ChunkRun]]
"""Returns the parts of a run that may go, in its order."""


@mypyc_attr(allow_interpreted_subclasses=True)
class RequestUse:
    """What one request did with the chunks of a tier.

    Attributes:
        rank: when it first did anything, where an eviction counts that; 0 for never.
        noted: what else an eviction notes of it, chunk by chunk.
    """

    __slots__ = ("noted", "rank")

    def __init__(self) -> None:
        self.rank = 0
        self.noted: dict[str, set[ChunkRun]] = {}


@mypyc_attr(allow_interpreted_subclasses=True)
class Eviction(ABC):
    """An order in which chunks go; the store says what happens to them."""

    def touched(self, use: RequestUse, runs: Sequence[ChunkRun]) -> None:
        """A request uses chunks that are there; none where all that it offers is missing."""
        return

    @abstractmethod
    def inserted(self, use: RequestUse, runs: Sequence[ChunkRun]) -> None:
        """Chunks are about to be written, for a request."""

    def missed(self, use: RequestUse, runs: Sequence[ChunkRun]) -> None:
        """A request offers chunks that are not there; told before there is room for them."""
        return

    def refused(self, use: RequestUse, runs: Sequence[ChunkRun]) -> None:
        """There is no room for chunks that a request offers; ``missed`` and ``touched`` were told of it."""
        return

    def reused(self, use: RequestUse, runs: Sequence[ChunkRun]) -> None:
        """A request reads or offers chunks that are ready."""
        return

    def idle(self, runs: Sequence[ChunkRun]) -> None:
        """Chunks are ready and not being read: they may go from now on."""
        return

    def pinned(self, runs: Sequence[ChunkRun]) -> None:
        """Chunks may not go from now on, as they are read."""
        return

    @abstractmethod
    def forgotten(self, run: ChunkRun) -> None:
        """Chunks that may go are about to be given up, and not for want of room."""

    def finished(self, use: RequestUse) -> None:
        """A request is over."""
        return

    @abstractmethod
    def choose(self, chunks: int, may_go: MayGo) -> list[ChunkRun] | None:
        """Choose so many chunks of those that may go, and forget them.

        Returns:
            The chunks, those that go first in front, and of each run the last chunk first; None where there
            are not so many, and none is forgotten.
        """

    @abstractmethod
    def knows(self) -> set[ChunkRun]:
        """Return the chunks that it has in its order, each a run of its own."""

"""Eviction: which chunk of a tier goes when room is needed for others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from pagesim.kvcache.tiers.chunks import ChunkRun
from pagesim.kvcache.tiers.spans import Spans
from pagesim.setup.compiled import mypyc_attr

MayGo = Callable[[ChunkRun], list[ChunkRun]]
"""Returns the parts of a run that may go, in its order."""


@mypyc_attr(allow_interpreted_subclasses=True)
class RecencyClass:
    """Chunks of one rank: those that one request used, while it lives or when it was over.

    Attributes:
        number: ranks with smaller ones go first.
        chunks: how many there are.
        segments: in which they are; there may be others of which none is left.
        lives: whether the request may add others.
        demoted: of a request that lives, all chunks that it used and that do not have its recency class, as
            far as they are there.
        stack: the chunks in the order in which they go, those that go first at the end; None where that is
            to be looked for.
    """

    __slots__ = ("chunks", "demoted", "lives", "number", "segments", "stack")

    def __init__(self, number: int, *, lives: bool) -> None:
        self.number = number
        self.chunks = 0
        self.segments: dict[int, None] = {}
        self.lives = lives
        self.demoted: list[ChunkRun] = []
        self.stack: list[ChunkRun] | None = None


@mypyc_attr(allow_interpreted_subclasses=True)
class ChunkBatch:
    """Chunks of a tier that came with one offer, as far as the same has been done with them since.

    Attributes:
        readers: of each chunk, or `WRITING`.
        rank: of each chunk, where an eviction keeps ranks.
        chunks: that came; 0 where some were parted from the others, and of those.
    """

    __slots__ = ("chunks", "rank", "readers")

    def __init__(self, readers: int, chunks: int = 0, rank: RecencyClass | None = None) -> None:
        self.readers = readers
        self.chunks = chunks
        self.rank = rank

    def part(self, readers: int, rank: RecencyClass | None) -> ChunkBatch:
        """Return the batch of some of the chunks, with which something else was done."""
        self.chunks = 0
        return ChunkBatch(readers, 0, rank)


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

    def begun(self, held: Spans[ChunkBatch]) -> None:
        """Learn in which batches the store, which is empty, is going to hold its chunks.

        A batch's readers are the store's affair, its rank is the eviction's.
        """
        return

    def touched(self, use: RequestUse, runs: Sequence[ChunkRun]) -> None:
        """A request uses chunks that are there; none where all that it offers is missing."""
        return

    @abstractmethod
    def inserted(self, use: RequestUse, runs: Sequence[ChunkRun]) -> None:
        """Chunks are about to be written, for a request; they are in one batch."""

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

"""Cached runs: blocks that are held, found and evicted together, and the queue of the free ones."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, Protocol, Self

from pagesim.setup.compiled import mypyc_attr


class Content(Protocol):
    """What a sequence's tokens are, as far as another one may have the same ones, block by block."""

    def key(self, block: int) -> int:
        """Return the hash of a block: equal in two contents where all tokens up to its end are the same."""

    def key_at(self, tokens: int) -> int:
        """Return the hash of the block that ends after so many tokens, whatever the block size."""

    def common(self, other: Self, most: int) -> int:
        """Return how many of the first ``most`` blocks have the same hash in this and in another content."""


class Segments(Content, Protocol):
    """A content that is cut into segments.

    Attributes:
        ends: where each segment ends, in tokens.
        names: of each segment: equal exactly where all tokens up to its end, or the shorter one's, are.
        lookahead: tokens behind a block that must be the same, too, for the block to be.
    """

    ends: list[int]
    names: list[int]
    lookahead: int


@mypyc_attr(allow_interpreted_subclasses=True)
class Run:
    """Blocks of one sequence that follow one another.

    Attributes:
        count: blocks.
        content: of the request that computed them; None where they cannot be found.
        start: the place of the first block in that content.
        key: the hash of the first block.
        holders: what memory keeps with each of the requests that hold the blocks; none of a free run.
        ahead, behind: the neighbours of a free run in the queue.
        blocks: the numbers of the blocks, in token order; empty where blocks have none.
    """

    __slots__ = ("ahead", "behind", "blocks", "content", "count", "holders", "key", "start")

    ahead: Run
    behind: Run

    def __init__(self, count: int, content: Content | None = None, start: int = 0, key: int = 0) -> None:
        self.count = count
        self.content = content
        self.start = start
        self.key = key
        self.holders: list[Any] = []
        self.ahead = self.behind = self
        self.blocks: array[int] = array("i")

    def split(self, blocks: int) -> Run:
        """Keep the first ``blocks`` blocks; return a run of the others, with the same holders."""
        assert self.content is not None
        start = self.start + blocks
        rest = Run(self.count - blocks, self.content, start, self.content.key(start))
        rest.holders = list(self.holders)
        self.count = blocks
        if self.blocks:
            rest.blocks = self.blocks[blocks:]
            del self.blocks[blocks:]
        return rest


@mypyc_attr(allow_interpreted_subclasses=True)
class FreeQueue:
    """The free runs in the order in which they are taken; of each the last block goes first.

    Attributes:
        end: an empty run behind the last one; they are linked in a ring, so that the first is behind this.
    """

    __slots__ = ("end",)

    def __init__(self) -> None:
        self.end = Run(0)

    def __iter__(self) -> Iterator[Run]:
        run = self.end.behind
        while run is not self.end:
            yield run
            run = run.behind

    def append(self, run: Run) -> None:
        """Put a run at the end."""
        self.insert(run, self.end)

    def insert(self, run: Run, other: Run) -> None:
        """Put a run just ahead of another one."""
        before = other.ahead
        run.ahead, run.behind = before, other
        before.behind = other.ahead = run

    def remove(self, run: Run) -> None:
        """Take a run out, wherever it is."""
        run.ahead.behind = run.behind
        run.behind.ahead = run.ahead

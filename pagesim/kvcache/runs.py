"""Runs: cached blocks that are held, matched and evicted together, and the queue of free runs."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, Protocol, Self

from pagesim.setup.compiled import mypyc_attr


class BlockContent(Protocol):
    """The identity of a sequence's tokens, by which shared prefixes are recognised block by block."""

    def key(self, block: int) -> int:
        """Return the hash of a block: two contents' hashes are equal if all tokens up to its end are."""

    def key_at(self, tokens: int) -> int:
        """Return the hash of the block that ends after ``tokens`` tokens, for any block size."""

    def common(self, other: Self, most: int) -> int:
        """Return how many of the first ``most`` blocks have the same hash in another content."""


class Segments(BlockContent, Protocol):
    """A content that is divided into segments.

    Attributes:
        ends: the end of each segment, in tokens.
        names: name of each segment: two are equal exactly if all tokens up to the end of the shorter are.
        lookahead: tokens after a block that must also be equal for the block to match.
    """

    ends: list[int]
    names: list[int]
    lookahead: int


@mypyc_attr(allow_interpreted_subclasses=True)
class Run:
    """Consecutive blocks of one sequence.

    Attributes:
        count: number of blocks.
        content: content of the request that computed them; None if they are not cached.
        start: index of the first block in that content.
        key: hash of the first block.
        holders: the manager's data of each request that holds the blocks; empty for a free run.
        ahead, behind: neighbours of a free run in the queue.
        blocks: numbers of the blocks, in token order; empty if blocks are not numbered.
    """

    __slots__ = ("ahead", "behind", "blocks", "content", "count", "holders", "key", "start")

    ahead: Run
    behind: Run

    def __init__(self, count: int, content: BlockContent | None = None, start: int = 0, key: int = 0) -> None:
        self.count = count
        self.content = content
        self.start = start
        self.key = key
        self.holders: list[Any] = []
        self.ahead = self.behind = self
        self.blocks: array[int] = array("i")

    def split(self, blocks: int) -> Run:
        """Keep the first ``blocks`` blocks; return a run of the remaining ones with the same holders."""
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
    """The free runs in the order in which they are allocated, each from its last block on.

    Attributes:
        end: an empty run that links the last run to the first, closing a ring; the first run is behind it.
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
        """Add a run at the end."""
        self.insert(run, self.end)

    def insert(self, run: Run, other: Run) -> None:
        """Insert a run just ahead of another one."""
        before = other.ahead
        run.ahead, run.behind = before, other
        before.behind = other.ahead = run

    def remove(self, run: Run) -> None:
        """Remove a run from anywhere in the queue."""
        run.ahead.behind = run.behind
        run.behind.ahead = run.ahead

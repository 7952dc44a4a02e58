"""Cached runs: blocks that are held, found and evicted together, and the queue of the free ones."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Protocol, Self

from pagesim.kvcache.base import Holder


class Content(Protocol):
    """What a sequence's tokens are, as far as another one may have the same ones, block by block."""

    def key(self, block: int) -> int:
        """Name a block: two contents have one name for it where all tokens up to its end are the same."""

    def common(self, other: Self, most: int) -> int:
        """Return how many of so many leading blocks have the same name in this and in another content."""


def block_array(blocks: Iterable[int] = ()) -> array[int]:
    """Return numbers of blocks as an array, which is cut and joined faster than a list."""
    return array("i", blocks)


class Run:
    """Blocks of one sequence that follow one another.

    Attributes:
        count: how many there are.
        content: of the request that computed them; None where they cannot be found.
        start: the place of the first one in that content.
        key: its name there.
        holders: the requests that have them.
        blocks: their numbers, in token order, where blocks have numbers.
        ahead, behind: the neighbours in the queue of free runs.
    """

    __slots__ = ("ahead", "behind", "blocks", "content", "count", "holders", "key", "start")

    blocks: array[int]

    def __init__(self, count: int, content: Content | None = None, start: int = 0, key: int = 0) -> None:
        self.count = count
        self.content = content
        self.start = start
        self.key = key
        self.holders: list[Holder] = []
        self.ahead = self.behind = self

    def split(self, blocks: int) -> Run:
        """Keep so many blocks; return a run of the others, with the same holders."""
        assert self.content is not None
        start = self.start + blocks
        rest = Run(self.count - blocks, self.content, start, self.content.key(start))
        rest.holders = list(self.holders)
        self.count = blocks
        return rest


class FreeQueue(Run):
    """Runs that no holder has, in the order in which they are taken; of a run the last block first.

    It is a ring, in which the queue itself stands between the last run and the first: the first is behind it.
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(0)

    def __iter__(self) -> Iterator[Run]:
        run = self.behind
        while run is not self:
            yield run
            run = run.behind

    def push(self, run: Run) -> None:
        """Put a run at the end."""
        self.push_ahead(run, self)

    def push_ahead(self, run: Run, other: Run) -> None:
        """Put a run just ahead of another one."""
        before = other.ahead
        run.ahead, run.behind = before, other
        before.behind = other.ahead = run

    def remove(self, run: Run) -> None:
        """Take a run out, wherever it is."""
        run.ahead.behind = run.behind
        run.behind.ahead = run.ahead

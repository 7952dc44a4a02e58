"""Cached runs: blocks that are held, found and evicted together, and the queue of the free ones."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Any, Final, Protocol, Self

from pagesim.setup.compiled import mypyc_attr

ALL_BLOCKS: Final = 1 << 32
"""More blocks than any sequence has."""


class Content(Protocol):
    """What a sequence's tokens are, as far as another one may have the same ones, block by block.

    Attributes:
        unseen: whether no other content begins as it does, and no block of it was made findable yet: then
            there is nothing to look for. Memory says so no longer once it makes one findable.
        shared: leading blocks that another content may have, too. What comes behind them only this content
            asks for, and only once memory has made it findable: then memory says ``ALL_BLOCKS``.
    """

    unseen: bool
    shared: int

    def key(self, block: int) -> int:
        """Name a block: two contents have one name for it where all tokens up to its end are the same."""

    def key_at(self, tokens: int) -> int:
        """Name a block that ends with so many tokens, whatever its size; likewise."""

    def common(self, other: Self, most: int) -> int:
        """Return how many of so many leading blocks have the same name in this and in another content."""


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


def block_array(blocks: Iterable[int] = ()) -> array[int]:
    """Return numbers of blocks as an array, which is cut and joined faster than a list."""
    return array("i", blocks)


@mypyc_attr(allow_interpreted_subclasses=True)
class Queued:
    """Blocks that are taken and given back together.

    Attributes:
        ahead, behind: the neighbours in the queue of free ones.
        at: when they were given back, where that is noted: what was given back later has a greater one.
    """

    __slots__ = ("ahead", "at", "behind")

    ahead: Queued
    at: int
    behind: Queued


@mypyc_attr(allow_interpreted_subclasses=True)
class Run(Queued):
    """Blocks of one sequence that follow one another.

    Attributes:
        count: how many there are.
        content: of the request that computed them; None where they cannot be found.
        start: the place of the first one in that content.
        key: its name there.
        holders: what is kept with each of the requests that have them.
        index: by which it can be found.
        blocks: their numbers, in token order, where blocks have numbers.
    """

    __slots__ = ("blocks", "content", "count", "holders", "index", "key", "start")

    blocks: array[int]

    def __init__(self, count: int, content: Content | None = None, start: int = 0, key: int = 0) -> None:
        self.count = count
        self.content = content
        self.start = start
        self.key = key
        self.holders: list[Any] = []
        self.index: Any = None
        self.ahead = self.behind = self
        self.at = 0

    def split(self, blocks: int) -> Run:
        """Keep so many blocks; return a run of the others, with the same holders."""
        assert self.content is not None
        start = self.start + blocks
        rest = Run(self.count - blocks, self.content, start, self.content.key(start))
        rest.holders = list(self.holders)
        rest.index = self.index
        rest.at = self.at
        self.count = blocks
        return rest


@mypyc_attr(allow_interpreted_subclasses=True)
class FreeQueue(Queued):
    """What no holder has, in the order in which they are taken; of a run the last block first.

    It is a ring, in which the queue itself stands between the last run and the first: the first is behind it.
    """

    __slots__ = ()

    def __init__(self) -> None:
        self.ahead = self.behind = self
        self.at = 1 << 100  # later than anything

    def __iter__(self) -> Iterator[Any]:
        queued = self.behind
        while queued is not self:
            yield queued
            queued = queued.behind

    def push(self, run: Queued) -> None:
        """Put a run at the end."""
        before = self.ahead
        run.ahead, run.behind = before, self
        before.behind = self.ahead = run

    def push_ahead(self, run: Queued, other: Queued) -> None:
        """Put a run just ahead of another one."""
        before = other.ahead
        run.ahead, run.behind = before, other
        before.behind = other.ahead = run

    def remove(self, run: Queued) -> None:
        """Take a run out, wherever it is."""
        run.ahead.behind = run.behind
        run.behind.ahead = run.ahead

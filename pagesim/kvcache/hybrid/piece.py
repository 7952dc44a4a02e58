"""A piece: blocks of a window that can be found beside one another, and the sequences that have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pagesim.kvcache.holder import Holder
from pagesim.kvcache.runs import Queued
from pagesim.setup.compiled import mypyc_attr

if TYPE_CHECKING:
    from pagesim.kvcache.hybrid.pieces import PieceIndex

Part = tuple["Piece", int, int, int, int]
"""A piece that was found; from which place to which, and from which group to which, last not included."""

Names = list[tuple[int, int, int]]
"""Names of segments, each with the first place of a piece that is in it and the one behind the last."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Piece(Queued):
    """Blocks that can be found, in neighbouring places of a sequence and in neighbouring groups of a store.

    A sequence that gives them back at once does so group by group, in each the last place first. While one
    decodes that alone has them, a piece is *passing*: it is given back place by place, the first one first,
    in all groups, at steps that are known beforehand. Then some of it may be free, and the rest is not.

    Attributes:
        names: of the segments that they are in, as they were registered.
        start: the first place.
        count: how many places.
        first, last: from which group to which, the last not included.
        tables: that have them.
        index: by which they can be found.
        since: of a passing piece, when its place 0 is given back; see `Queued.at`.
        entry: of a passing piece, the number of its entry among the free blocks; else None.
    """

    __slots__ = ("count", "entry", "first", "index", "last", "names", "since", "start", "tables")

    entry: int | None

    def __init__(
        self, index: PieceIndex, names: Names, start: int, count: int, first: int, last: int
    ) -> None:
        self.index = index
        self.names = names
        self.start = start
        self.count = count
        self.first = first
        self.last = last
        self.at = self.since = 0
        self.entry = None
        self.tables: list[WindowTable] = []

    def place_at(self, place: int) -> int:
        """Return when a place of a passing piece is given back."""
        return self.since + place * self.index.stride

    def free_before(self, now: int) -> int:
        """Return before which place a piece is free."""
        if not self.tables:
            return self.start + self.count
        if self.entry is None:
            return self.start
        given_back = (now - self.since) // self.index.stride + 1
        return min(max(self.start, given_back), self.start + self.count)

    def span(self, name: int) -> tuple[int, int]:
        """Return which of its places are in a segment, from one to another."""
        start, end = self.start, self.start + self.count
        if len(self.names) > 1:
            for each, begin, behind in self.names:
                if each == name:
                    return max(start, begin), min(end, behind)
        return start, end

    def name_at(self, place: int) -> int:
        """Return in which segment a place is."""
        return next(name for name, begin, end in self.names if begin <= place < end)

    def is_in(self, begin: int, end: int) -> bool:
        """Say whether it has a place from one to another."""
        return begin < self.start + self.count and self.start < end

    def overlaps(self, other: Piece) -> bool:
        """Say whether two pieces have a place in one group."""
        return (
            self.is_in(other.start, other.start + other.count)
            and self.first < other.last
            and other.first < self.last
        )


@mypyc_attr(allow_interpreted_subclasses=True)
class WindowTable:
    """The blocks of a sequence in the groups of a store.

    Attributes:
        gone: leading places without a block.
        passed: leading places of which it is decided whether they can be found.
        wanted: places that can be found once they are full, each time from one to another.
        decided: leading places behind which none can be found.
        owner: the holder.
        pieces: those that can be found, by their place.
    """

    __slots__ = ("decided", "gone", "owner", "passed", "pieces", "wanted")

    def __init__(self, owner: Holder, wanted: Sequence[tuple[int, int]]) -> None:
        self.owner = owner
        self.gone = self.passed = 0
        self.wanted = wanted = sorted(wanted) if len(wanted) > 1 else wanted
        self.decided = max([last for _, last in wanted]) if wanted else 0
        self.pieces: list[Piece] = []

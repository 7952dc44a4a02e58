"""Stores: what a counted hybrid cache keeps of groups that are alike."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from pagesim.kvcache.groups import SlidingWindow
from pagesim.kvcache.holder import Holder
from pagesim.kvcache.hybrid.free import FreeBlocks
from pagesim.kvcache.hybrid.kinds import FullGroup, WindowGroup
from pagesim.kvcache.hybrid.piece import Part, WindowTable
from pagesim.kvcache.hybrid.pieces import PieceIndex
from pagesim.kvcache.run_index import Hit, Prefix, RunIndex, free_blocks
from pagesim.kvcache.runs import Segments
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class FullStore:
    """A group of full attention: see `RunIndex`.

    Attributes:
        kind: the rule of the group.
        held: of each group of the memory, the blocks that sequences have.
        index: of what can be found.
    """

    __slots__ = ("held", "index", "kind", "pool")

    groups = 1

    def __init__(self, kind: FullGroup, pool: FreeBlocks, held: list[int]) -> None:
        self.kind = kind
        self.pool = pool
        self.held = held
        self.index = RunIndex(pool.queue)

    def new_table(self, holder: Holder, content: Segments | None) -> Prefix:
        """Return an empty table."""
        return Prefix(content, [], 0)

    def free(self, hits: Sequence[Hit]) -> int:
        """Return how many blocks of what was found are free."""
        return free_blocks(hits)

    def adopt(self, table: Prefix, hits: Sequence[Hit], blocks: int) -> None:
        """Take over what was found of the first so many blocks."""
        pool = self.pool
        pool.version += 1
        table.hashed = blocks
        for run, taken, count in hits:
            if taken < count:
                self.index.split(run, taken)
            if run.holders:
                pool.shared += taken
            else:
                pool.queue.remove(run)
                pool.cached -= taken
                self.held[self.kind.number] += taken
            run.holders.append(table)
            table.runs.append(run)

    def register(self, table: Prefix, content: Segments, full: int) -> None:
        """Make the blocks of a sequence findable whose first so many are full."""
        if table.hashed < full:
            self.pool.version += 1
            self.index.register(table, full)

    def drop(self, table: Prefix, end: int) -> None:
        """Give everything back of a sequence of so many blocks."""
        pool = self.pool
        blank = end - table.hashed
        pool.blank += blank
        freed = 0
        for run in reversed(table.runs):
            run.holders.remove(table)
            if run.holders:
                pool.shared -= run.count
            else:
                pool.push(run)
                freed += run.count
        pool.cached += freed
        self.held[self.kind.number] -= blank + freed


@mypyc_attr(allow_interpreted_subclasses=True)
class WindowStore:
    """Neighbouring groups of one sliding window: see `PieceIndex`.

    Attributes:
        kind: the rule of each group.
        groups: how many they are.
        numbers: which.
        held: of each group of the memory, the blocks that sequences have.
        gives: how many settled sequences give a block of each group back at a step, modulo the block size,
            that cannot be found.
        passes: likewise, one of a passing piece.
        index: of what can be found.
    """

    __slots__ = ("gives", "groups", "held", "index", "kind", "numbers", "passes", "pool", "window")

    def __init__(self, kind: WindowGroup, groups: int, pool: FreeBlocks, held: list[int]) -> None:
        self.kind = kind
        self.groups = groups
        self.numbers = range(kind.number, kind.number + groups)
        self.pool = pool
        assert isinstance(kind.group.rule, SlidingWindow)
        self.window = kind.group.rule.window
        self.held = held
        self.gives = array("q", bytes(8 * kind.size))
        self.passes = array("q", bytes(8 * kind.size))
        self.index = PieceIndex(groups, kind.size, kind.contiguous, pool, kind.number)

    def new_table(self, holder: Holder, content: Segments | None) -> WindowTable:
        """Return an empty table."""
        return WindowTable(holder, () if content is None else self.kind.wanted(holder))

    def released(self, processed: int) -> int:
        """Return the leading blocks that no token after the first so many attends to."""
        return max(0, processed - self.window + 1) // self.kind.size

    def free(self, parts: list[Part]) -> int:
        """Return how many blocks of what was found are free."""
        now = self.pool.at
        return sum(
            [
                max(0, min(end, piece.free_before(now)) - start) * (last - first)
                for piece, start, end, first, last in parts
            ]
        )

    def adopt(self, table: WindowTable, parts: list[Part], blocks: int) -> None:
        """Take over what was found of the blocks before so many."""
        pool = self.pool
        table.gone = max(0, blocks - self.kind.contiguous)
        pool.version += 1
        table.passed = blocks
        table.pieces = pieces = self.index.adopt(parts)
        for piece in pieces:
            taken = piece.count * (piece.last - piece.first)
            if piece.tables:
                pool.shared += taken
            else:
                if piece.entry is not None:
                    piece.entry = None
                else:
                    pool.queue.remove(piece)
                pool.cached -= taken
                self._hold(piece.first, piece.last, piece.count)
            piece.tables.append(table)
            if len(piece.tables) > 1:
                self.index.shared[piece] = None
        self.index.join(table)

    def register(self, table: WindowTable, content: Segments, full: int) -> None:
        """Make those blocks of a sequence findable that are, with so many full blocks."""
        if table.passed < full and table.passed < table.decided:
            self.pool.version += 1
            self.index.register(table, content, full)

    def freed(self, table: WindowTable, end: int) -> int:
        """Return the blocks that are free once everything is given back that comes before a place."""
        shared = [
            (min(end, piece.start + piece.count) - piece.start) * (piece.last - piece.first)
            for piece in table.pieces
            if piece.start < end and len(piece.tables) > 1
        ]
        return max(0, end - table.gone) * self.groups - sum(shared)

    def give_back(self, table: WindowTable, end: int) -> int:
        """Give back what comes before a place; return how many of these blocks cannot be found."""
        count = end - table.gone
        table.gone = end
        pieces = table.pieces
        self._hold(0, self.groups, -count)
        if not pieces or pieces[0].start >= end:
            return count * self.groups
        pool = self.pool
        blank = count * self.groups
        free = []
        for piece in self.index.let_go(table, end):
            let_go = piece.count * (piece.last - piece.first)
            blank -= let_go
            if piece.tables:
                pool.shared -= let_go
                self._hold(piece.first, piece.last, piece.count)
            else:
                pool.cached += let_go
                free.append(piece)
        if free:
            self.index.push(free)
        return blank

    def drop(self, table: WindowTable, end: int) -> None:
        """Give everything back of a sequence of so many blocks."""
        self.pool.blank += self.give_back(table, end)

    def _hold(self, first: int, last: int, blocks: int) -> None:
        """Count so many blocks more in each group from one to another."""
        for group in self.numbers[first:last]:
            self.held[group] += blocks

"""Pieces: what can be found of groups with a window, by neighbouring blocks and not by the block."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from pagesim.kvcache.hybrid.cover import (
    append,
    append_firsts,
    covered,
    first_at,
    in_group,
    places_by_group,
    spans_of,
)
from pagesim.kvcache.hybrid.free import STEP, FreeBlocks
from pagesim.kvcache.hybrid.piece import Names, Part, Piece, WindowTable
from pagesim.kvcache.runs import Segments
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class PieceIndex:
    """Finds pieces by the names of segments.

    The groups of a store are of one rule and follow one another: what a sequence has in one of them it has in
    all, until content is evicted, which goes block by block.

    Args:
        groups: how many there are.
        size: tokens a block.
        contiguous: blocks that a hit needs, if there are as many before it.
        free: the free blocks.
        number: tells the index from others of the memory; what has a lower one is given back before.

    Attributes:
        found: of each segment the pieces that are there, the one registered first in front.
        shared: the pieces that several sequences have.
        version: how often something was registered.
    """

    __slots__ = ("contiguous", "found", "free", "groups", "number", "shared", "size", "stride", "version")

    def __init__(self, groups: int, size: int, contiguous: int, free: FreeBlocks, number: int) -> None:
        self.groups = groups
        self.size = size
        self.contiguous = contiguous
        self.free = free
        self.number = number
        self.stride = size * STEP
        self.found: dict[int, list[Piece]] = {}
        self.shared: dict[Piece, None] = {}
        self.version = 0

    @property
    def findable(self) -> int:
        """Blocks of different content that can be found; counted here, segment by segment."""
        blocks = 0
        for name, pieces in self.found.items():
            if len(pieces) == 1:
                start, end = pieces[0].span(name)
                blocks += (end - start) * (pieces[0].last - pieces[0].first)
            else:
                _, by_group = places_by_group(pieces, name, self.groups)
                blocks += sum([places.bit_count() for places in by_group])
        return blocks

    # Look-up

    def find(self, content: Segments, most: int) -> int:
        """Return the longest hit of at most so many blocks: all groups have what it needs."""
        names, ends, behind = content.names, content.ends, content.lookahead
        found, size = self.found, self.size
        needed = self.contiguous or 1
        segment = bisect_left(ends, most * size + behind)
        top = low = -1  # from where to where all is there, so far
        while most > 0:
            begin = max(0, (ends[segment - 1] - behind) // size) if segment else 0
            pieces = found.get(names[segment])
            if pieces is not None:
                for start, end in self._covered(pieces, names[segment]):
                    if end > most:
                        end = most
                    if start < begin:
                        start = begin
                    if start >= end:
                        continue
                    if end != low:
                        top = end
                    low = start
                    if top - low >= needed or not low:
                        return top
            if begin < most:
                most = begin
            segment -= 1
        return 0

    def hit(self, content: Segments, blocks: int) -> list[Part]:
        """Return what a hit of so many blocks takes over, in each group of each place what came first."""
        ends, size, behind = content.ends, self.size, content.lookahead
        parts: list[Part] = []
        place = max(0, blocks - self.contiguous)
        segment = bisect_left(ends, (place + 1) * size + behind)
        while place < blocks:
            end = min(blocks, (ends[segment] - behind) // size)
            if place < end:
                pieces = self.found[content.names[segment]]
                if len(pieces) == 1:
                    append(parts, pieces[0], place, end, 0, self.groups)
                else:
                    append_firsts(parts, pieces, content.names[segment], place, end, self.groups)
                place = end
            segment += 1
        return parts

    def adopt(self, parts: Sequence[Part]) -> list[Piece]:
        """Return parts of pieces as pieces of their own, by their place."""
        adopted: list[Piece] = []
        for piece, start, end, first, last in parts:
            if (piece.start, piece.count, piece.first, piece.last) == (start, end - start, first, last):
                adopted.append(piece)
            else:
                adopted += self._carve(piece.name_at(start), start, end, first, last)
        adopted.sort(key=lambda piece: piece.start)
        return adopted

    # Changes

    def register(self, table: WindowTable, content: Segments, full: int) -> None:
        """Make those blocks of a sequence findable of which it is decided now, with so many full blocks."""
        passed, table.passed = table.passed, full
        ends, size, behind = content.ends, self.size, content.lookahead
        begin = max(passed, table.gone)
        for start, last in table.wanted:
            place, end = max(start, begin), min(last, full)
            if place >= end:
                continue
            begin = end
            self.version += 1
            content.unseen = False
            names: Names = []
            piece = Piece(self, names, place, end - place, 0, self.groups)
            piece.tables.append(table)
            table.pieces.append(piece)
            segment = bisect_left(ends, (place + 1) * size + behind)
            while place < end:
                stop = min(end, (ends[segment] - behind) // size)
                if place < stop:
                    name = content.names[segment]
                    names.append((name, place, stop))
                    there = self.found.get(name)
                    if there is None:
                        self.found[name] = [piece]
                    else:
                        there.append(piece)
                    place = stop
                segment += 1

    def let_go(self, table: WindowTable, end: int) -> list[Piece]:
        """Take the pieces that come before a place out of a table; return them, each group's in order."""
        for piece in [each for each in table.pieces if each.start < end < each.start + each.count]:
            self.free.version += 1
            self.cut(piece, end)
        let_go = [piece for piece in table.pieces if piece.start < end]
        table.pieces = [piece for piece in table.pieces if piece.start >= end]
        for piece in let_go:
            piece.tables.remove(table)
            if len(piece.tables) == 1:
                del self.shared[piece]
        return let_go

    def join(self, table: WindowTable) -> None:
        """Make one of pieces of a table that go on from one another and are of the same sequences."""
        joined: list[Piece] = []
        for piece in list(table.pieces):
            before: Piece | None = piece
            while before is not None:
                piece = before
                before = next((each for each in joined[-self.groups :] if self._goes_on(each, piece)), None)
                if before is not None:
                    joined.remove(before)
                    self._join(before, piece)
            joined.append(piece)

    def can_pass(self, table: WindowTable) -> bool:
        """Say whether the pieces of a table are such that they can be given back place by place."""
        return all(len(piece.tables) == 1 and self._is_whole(piece) for piece in table.pieces)

    def stop_passing(self, table: WindowTable) -> None:
        """Leave a table what is not gone of its first piece, which passes; the rest of that is free."""
        self.free.version += 1
        piece, gone = table.pieces[0], table.gone
        if gone <= piece.start:
            piece.entry = None
            return
        if gone < piece.start + piece.count:
            entry, piece.entry = piece.entry, None
            self.cut(piece, gone)
            piece.entry = entry
        del table.pieces[0]
        piece.tables.clear()

    def push(self, pieces: Sequence[Piece]) -> None:
        """Put pieces that no sequence has, by their place, at the end of the queue."""
        if len(pieces) == 1:
            self.free.push(pieces[0])
            return
        alone = [each for piece in pieces for each in (piece, *self._apart(piece))]
        for group in range(self.groups):
            for piece in reversed(alone):
                if piece.first == group:
                    self.free.push(piece)

    def evict(self, piece: Piece, most: int) -> int:
        """Evict at most so many blocks of the first free piece, in their order; return how many."""
        count, groups = piece.count, piece.last - piece.first
        if most >= count * groups:
            self.free.queue.remove(piece)
            self.shrink(piece, piece.start, 0)
            return count * groups
        whole, rest = divmod(most, count)
        piece.first += whole
        if rest:
            if piece.last - piece.first > 1:
                others = self.copy(piece, piece.start, count, piece.first + 1, piece.last, [])
                piece.last = piece.first + 1
                self.free.queue.push_ahead(others, piece.behind)
            self.shrink(piece, piece.start, count - rest)
        return most

    # Inside

    def _is_whole(self, piece: Piece) -> bool:
        return piece.last - piece.first == self.groups

    def _covered(self, pieces: Sequence[Piece], name: int) -> list[tuple[int, int]]:
        """Return where all groups have a block, from one place to another each time, the last first."""
        if len(pieces) == 1:
            return [pieces[0].span(name)] if self._is_whole(pieces[0]) else []
        return covered(pieces, name, self.groups)

    def _carve(self, name: int, start: int, end: int, first: int, last: int) -> list[Piece]:
        """Cut what is found first from one place and group to others out of its piece."""
        spans = spans_of(self.found[name], name, start, end)
        piece, _ = first_at(in_group(spans, first), start, end)
        is_queued = not piece.tables and piece.entry is None
        if (piece.first, piece.last) != (first, last) or (is_queued and last - first > 1):
            others = self._apart(piece)
            for other in others:
                if is_queued:
                    self.free.queue.push_ahead(other, piece.behind)
                elif piece.entry is not None:
                    self.free.push_passing(other)
            if last - first > 1:
                return [
                    each
                    for group in range(first, last)
                    for each in self._carve(name, start, end, group, group + 1)
                ]
            return self._carve(name, start, end, first, last)
        if piece.start < start:
            piece = self.cut(piece, start)
        if piece.start + piece.count > end:
            self.cut(piece, end)
        return [piece]

    def _goes_on(self, piece: Piece, other: Piece) -> bool:
        """Say whether two pieces of the same sequences could be one, by their places, groups and ranks."""
        if piece.tables != other.tables or piece.names is not other.names:
            return False
        if (piece.first, piece.last) == (other.first, other.last):
            if piece.start + piece.count != other.start:
                return False
        elif (piece.start, piece.count) != (other.start, other.count) or (
            piece.last != other.first and other.last != piece.first
        ):
            return False
        for name, begin, end in piece.names:
            if piece.is_in(begin, end) and other.is_in(begin, end):
                pieces = self.found[name]
                ranks = sorted((pieces.index(piece), pieces.index(other)))
                if any(each.overlaps(other) for each in pieces[ranks[0] + 1 : ranks[1]]):
                    return False
        return True

    def _join(self, piece: Piece, other: Piece) -> None:
        """Make a piece of two."""
        for name, begin, end in other.names:
            if other.is_in(begin, end):
                pieces = self.found[name]
                if piece.is_in(begin, end):
                    pieces.remove(other)
                else:
                    pieces[pieces.index(other)] = piece
        for table in other.tables:
            table.pieces.remove(other)
        self.shared.pop(other, None)
        if piece.first == other.first:
            piece.count += other.count
        else:
            piece.first, piece.last = min(piece.first, other.first), max(piece.last, other.last)
        other.count = 0

    def _apart(self, piece: Piece) -> list[Piece]:
        """Leave a piece its first group; return pieces of the others, the last first."""
        others = [
            self.copy(piece, piece.start, piece.count, group, group + 1, piece.tables)
            for group in range(piece.last - 1, piece.first, -1)
        ]
        piece.last = piece.first + 1
        return others

    def cut(self, piece: Piece, place: int) -> Piece:
        """Cut a piece, of one group if it is free, in two before a place; return the second."""
        count = piece.start + piece.count - place
        rest = self.copy(piece, place, count, piece.first, piece.last, piece.tables)
        self.shrink(piece, piece.start, piece.count - rest.count)
        if piece.entry is not None:
            self.free.push_passing(rest)
        elif not piece.tables:
            self.free.queue.push_ahead(rest, piece)
        return rest

    def copy(
        self, piece: Piece, start: int, count: int, first: int, last: int, tables: Sequence[WindowTable]
    ) -> Piece:
        """Return a piece beside another one, with its rank in the index, and in so many of its tables."""
        other = Piece(self, piece.names, start, count, first, last)
        other.at, other.since = piece.at, piece.since
        other.tables = list(tables)
        if len(other.tables) > 1:
            self.shared[other] = None
        for table in tables:
            table.pieces.insert(table.pieces.index(piece) + 1, other)
        for name, begin, end in piece.names:
            if begin < start + count and start < end:
                pieces = self.found[name]
                pieces.insert(pieces.index(piece) + 1, other)
        return other

    def shrink(self, piece: Piece, start: int, count: int) -> None:
        """Leave a piece some of its places, or none."""
        for name, begin, end in piece.names:
            if piece.is_in(begin, end) and not (begin < start + count and start < end and count):
                pieces = self.found[name]
                if len(pieces) == 1:
                    del self.found[name]
                else:
                    pieces.remove(piece)
        piece.start, piece.count = start, count

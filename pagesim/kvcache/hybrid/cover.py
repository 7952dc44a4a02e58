"""Cover: which places of a segment pieces cover in the groups of a store, and which came first there."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_

from pagesim.kvcache.hybrid.piece import Part, Piece

Span = tuple[int, int, Piece]
"""Which places of a segment are in a piece, from one to another."""


def spans_of(pieces: Sequence[Piece], name: int, place: int, end: int) -> list[Span]:
    """Return the pieces of a segment that have a place from one to another, in their order."""
    return [
        (start, behind, piece)
        for piece in pieces
        if piece.start < end
        for start, behind in (piece.span(name),)
        if start < end and place < behind
    ]


def in_group(spans: Sequence[Span], group: int) -> list[Span]:
    """Return those of some spans whose piece is in a group."""
    return [span for span in spans if span[2].first <= group < span[2].last]


def first_at(spans: Sequence[Span], place: int, end: int) -> tuple[Piece, int]:
    """Return what came first at a place, and to which place it did, up to one."""
    for start, behind, piece in spans:
        if start <= place:
            if place < behind:
                return piece, behind if behind < end else end
        elif start < end:
            end = start
    raise AssertionError("what is there of all groups was looked up before")


def append_firsts(
    parts: list[Part], pieces: Sequence[Piece], name: int, place: int, end: int, groups: int
) -> None:
    """Append what each of so many groups has first of a segment from one place to another."""
    spans = spans_of(pieces, name, place, end)
    by_group: list[list[Span]] = []
    while place < end:
        first, behind = first_at(spans, place, end)
        if first.last - first.first == groups:
            append(parts, first, place, behind, 0, groups)
        else:
            by_group = by_group or [in_group(spans, group) for group in range(groups)]
            for group, own in enumerate(by_group):
                at = place
                while at < behind:
                    first, until = first_at(own, at, behind)
                    append(parts, first, at, until, group, group + 1)
                    at = until
        place = behind


def append(parts: list[Part], piece: Piece, start: int, end: int, first: int, last: int) -> None:
    """Append a part of a piece, to what is there of it before."""
    for place in range(len(parts) - 1, -1, -1):
        before, begin, behind, first_before, last_before = parts[place]
        if behind < start:
            break
        if before is piece and behind == start and (first_before, last_before) == (first, last):
            parts[place] = piece, begin, end, first, last
            return
    parts.append((piece, start, end, first, last))


def covered(pieces: Sequence[Piece], name: int, groups: int) -> list[tuple[int, int]]:
    """Return where each of so many groups has a block, from one place to another each time, last first."""
    least, by_group = places_by_group(pieces, name, groups)
    places = reduce(and_, by_group)
    found: list[tuple[int, int]] = []
    while places:
        end = places.bit_length()
        start = (~places & (1 << end) - 1).bit_length()
        found.append((least + start, least + end))
        places &= (1 << start) - 1
    return found


def places_by_group(pieces: Sequence[Piece], name: int, groups: int) -> tuple[int, list[int]]:
    """Return of each of so many groups at which places it has a block of a segment.

    Returns:
        The least place, and of each group a number: its bit i says whether the place i behind that is there.
    """
    spans = [(*piece.span(name), piece) for piece in pieces]
    least = min([start for start, _, _ in spans])
    by_group = [0] * groups
    for start, end, piece in spans:
        places = (1 << end - least) - (1 << start - least)
        for group in range(piece.first, piece.last):
            by_group[group] |= places
    return least, by_group

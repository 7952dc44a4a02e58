"""Chunk runs: how chunks of KV are named, so that many in a row are handled as one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from operator import itemgetter
from typing import Final

ChunkRun = tuple[int, int, int]
"""Chunks in a row of one segment: the `segment`, the number of the first, and that behind the last. Chunks
are numbered from the first of the sequence, not of the segment."""

_GROUPS: Final = 8
_SIZES: Final = 32
NAMED: Final = _GROUPS + _SIZES
"""A segment is its name, shifted by so many bits, and the segment of name 0."""

END = itemgetter(2)
"""Returns the number of the chunk behind a run."""


def segment(name: int, tokens: int, group: int = 0) -> int:
    """Name the chunks of a part of a sequence.

    Args:
        name: of the content: equal exactly where all tokens up to the end of a chunk are (`runs.Segments`).
        tokens: a chunk.
        group: the KV group.
    """
    return (name << _GROUPS | group) << _SIZES | tokens


def group_of(run: ChunkRun) -> int:
    """Return the KV group of a run."""
    return run[0] >> _SIZES & ((1 << _GROUPS) - 1)


def count(runs: Iterable[ChunkRun]) -> int:
    """Return how many chunks there are in runs."""
    found = 0
    for _, first, end in runs:
        found += end - first
    return found


def within(runs: Sequence[ChunkRun], first: int, end: int) -> list[ChunkRun]:
    """Return the parts, none of them empty, of runs in order with these numbers, the last not included."""
    if first >= end:
        return []
    place = bisect_right(runs, first, key=END)
    if place == len(runs):
        return []
    segment, start, stop = runs[place]
    if start > first:
        first = start
    if end <= stop:
        return [(segment, first, end)] if first < end else []
    found = [(segment, first, stop)]
    for segment, start, stop in runs[place + 1 :]:
        if start >= end:
            break
        found.append((segment, start, stop if stop < end else end))
    return found


def singles(runs: Iterable[ChunkRun]) -> list[ChunkRun]:
    """Return runs chunk by chunk, each a run of its own."""
    return [(segment, place, place + 1) for segment, first, end in runs for place in range(first, end)]


def joined(runs: Iterable[ChunkRun]) -> list[ChunkRun]:
    """Return runs in their order, those that go on from the one before as one with it."""
    found: list[ChunkRun] = []
    for run in runs:
        if found and found[-1][0] == run[0] and found[-1][2] == run[1]:
            found[-1] = (run[0], found[-1][1], run[2])
        else:
            found.append(run)
    return found


def tail_first(runs: Iterable[ChunkRun], *, last_group_first: bool = False) -> Iterator[ChunkRun]:
    """Yield chunks in the order of their ends, those with the most tokens before them first.

    Each run that is yielded is to be read from its end. Chunks that end with the same token come by group.

    Args:
        runs: no chunk is in two of them.
        last_group_first: whether the last of the groups comes first; else the first.
    """
    sign = -1 if last_group_first else 1
    heap = []
    for run in runs:
        name, tokens = divmod(run[0], 1 << _SIZES)
        heap.append((-run[2] * tokens, sign * group_of(run), sign * name, run))
    heapify(heap)
    while heap:
        _, group, name, run = heap[0]
        if len(heap) == 1:
            yield run
            return
        segment, first, end = run
        tokens = segment & ((1 << _SIZES) - 1)
        ahead = min(heap[1:3])  # of the others
        # Where this run's chunks end with as many tokens as the next one's, the group says which comes first.
        least = -ahead[0] // tokens if (group, name) > ahead[1:3] else (-ahead[0] - 1) // tokens
        if least <= first:
            heappop(heap)
            yield run
        else:
            heapreplace(heap, (-least * tokens, group, name, (segment, first, least)))
            yield segment, least, end

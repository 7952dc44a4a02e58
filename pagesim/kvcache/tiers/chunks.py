"""Chunk runs: names for chunks of KV that allow consecutive ones to be handled together."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from operator import itemgetter
from typing import Final

ChunkRun = tuple[int, int, int]
"""Consecutive chunks of one segment: the `segment`, the number of the first, and the end (exclusive). Chunks
are numbered from the start of the sequence, not of the segment."""

_GROUPS: Final = 8
_SIZES: Final = 32
NAMED: Final = _GROUPS + _SIZES
"""Bits by which a segment's name is shifted; the bits below are those of the segment with name 0."""

END = itemgetter(2)
"""Returns the end of a run (exclusive)."""


def segment(name: int, tokens: int, group: int = 0) -> int:
    """Return the segment that identifies the chunks of a part of a sequence.

    Args:
        name: name of the content: equal exactly if all tokens up to the end of a chunk are (`runs.Segments`).
        tokens: tokens per chunk.
        group: index of the KV group.
    """
    return (name << _GROUPS | group) << _SIZES | tokens


def group_of(run: ChunkRun) -> int:
    """Return the KV group of a run."""
    return run[0] >> _SIZES & ((1 << _GROUPS) - 1)


def count(runs: Iterable[ChunkRun]) -> int:
    """Return the number of chunks in runs."""
    found = 0
    for _, first, end in runs:
        found += end - first
    return found


def within(runs: Sequence[ChunkRun], first: int, end: int) -> list[ChunkRun]:
    """Return the non-empty parts of ordered runs with chunk numbers in ``[first, end)``."""
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
    """Return the chunks of runs, each as a run of its own."""
    return [(segment, place, place + 1) for segment, first, end in runs for place in range(first, end)]


def joined(runs: Iterable[ChunkRun]) -> list[ChunkRun]:
    """Return runs in their order, merging each run that continues the previous one."""
    found: list[ChunkRun] = []
    for run in runs:
        if found and found[-1][0] == run[0] and found[-1][2] == run[1]:
            found[-1] = (run[0], found[-1][1], run[2])
        else:
            found.append(run)
    return found


def tail_first(runs: Iterable[ChunkRun], *, last_group_first: bool = False) -> Iterator[ChunkRun]:
    """Yield chunks by descending end in tokens, as runs that are to be read from their end.

    Chunks that end at the same token are ordered by group.

    Args:
        runs: disjoint runs.
        last_group_first: whether the last group comes first instead of the first one.
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
        ahead = min(heap[1:3])  # the first of the others
        # If a chunk of this run ends at the same token as the next run, the group decides which comes first.
        least = -ahead[0] // tokens if (group, name) > ahead[1:3] else (-ahead[0] - 1) // tokens
        if least <= first:
            heappop(heap)
            yield run
        else:
            heapreplace(heap, (-least * tokens, group, name, (segment, first, least)))
            yield segment, least, end

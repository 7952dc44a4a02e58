"""Spans: a value for each chunk that has one, kept for chunks in a row together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from pagesim.kvcache.tiers.chunks import ChunkRun

V = TypeVar("V")


class Spans(Generic[V]):
    """Maps chunks to values, none of them None; chunks in a row with one value are one span."""

    __slots__ = ("_of",)

    def __init__(self) -> None:
        self._of: dict[int, list[tuple[int, int, V]]] = {}  # of each segment the spans, in their order

    def __iter__(self) -> Iterator[tuple[ChunkRun, V]]:
        """Iterate over all spans."""
        for segment, spans in self._of.items():
            for first, end, value in spans:
                yield (segment, first, end), value

    def of(self, segment: int) -> list[tuple[int, int, V]]:
        """Return the spans of a segment, in their order: first chunk, that behind the last, value."""
        return self._of.get(segment, [])

    def cut(self, run: ChunkRun) -> list[tuple[int, int, V | None]]:
        """Cut a run where the value changes; None where there is none."""
        segment, first, end = run
        spans = self._of.get(segment)
        if spans is None or spans[-1][1] <= first:
            return [(first, end, None)]
        if len(spans) == 1 and spans[0][0] <= first and end <= spans[0][1]:
            return [(first, end, spans[0][2])]
        found: list[tuple[int, int, V | None]] = []
        for start, stop, value in spans:
            if stop <= first:
                continue
            if start >= end:
                break
            if start > first:
                found.append((first, start, None))
                first = start
            if stop >= end:
                found.append((first, end, value))
                return found
            found.append((first, stop, value))
            first = stop
        if first < end:
            found.append((first, end, None))
        return found

    def there(self, run: ChunkRun) -> list[ChunkRun]:
        """Return the parts of a run that have a value."""
        return [(run[0], first, end) for first, end, value in self.cut(run) if value is not None]

    def missing(self, run: ChunkRun) -> list[ChunkRun]:
        """Return the parts of a run that have no value."""
        return [(run[0], first, end) for first, end, value in self.cut(run) if value is None]

    def touches(self, runs: Iterable[ChunkRun]) -> bool:
        """Say whether any chunk of these has a value."""
        return any(self.there(run) for run in runs)

    def put(self, run: ChunkRun, value: V) -> None:
        """Give all chunks of a run a value, whatever they had before."""
        segment, first, end = run
        spans = self._of.get(segment)
        if spans is None:
            self._of[segment] = [(first, end, value)]
            return
        start, stop, other = spans[-1]
        if stop <= first:  # behind all others
            if stop == first and other == value:
                spans[-1] = (start, end, value)
            else:
                spans.append((first, end, value))
            return
        if start == first and stop == end:  # the last of them
            if len(spans) > 1 and spans[-2][1] == first and spans[-2][2] == value:
                del spans[-1]
                first = spans[-1][0]
            spans[-1] = (first, end, value)
            return
        before: list[tuple[int, int, V]] = []
        after: list[tuple[int, int, V]] = []
        for span in spans:
            start, stop, other = span
            if stop < first:
                before.append(span)
            elif start > end:
                after.append(span)
            elif other == value:
                first, end = min(first, start), max(end, stop)
            else:
                if start < first:
                    before.append((start, min(stop, first), other))
                if stop > end:
                    after.append((max(start, end), stop, other))
        spans[:] = [*before, (first, end, value), *after]

    def add(self, run: ChunkRun, value: V) -> list[ChunkRun]:
        """Give the chunks of a run a value that have none; return them."""
        spans = self._of.get(run[0])
        if spans is None or spans[-1][1] <= run[1]:
            self.put(run, value)
            return [run]
        fresh = self.missing(run)
        for part in fresh:
            self.put(part, value)
        return fresh

    def remove(self, run: ChunkRun) -> None:
        """Take the values of all chunks of a run away."""
        segment, first, end = run
        spans = self._of.get(segment)
        if spans is None:
            return
        start, stop, value = spans[-1]
        if start <= first < stop <= end:  # its tail
            if start < first:
                spans[-1] = (start, first, value)
            elif len(spans) > 1:
                del spans[-1]
            else:
                del self._of[segment]
            return
        left: list[tuple[int, int, V]] = []
        for start, stop, value in spans:
            if start < first:
                left.append((start, min(stop, first), value))
            if stop > end:
                left.append((max(start, end), stop, value))
        if left:
            self._of[segment] = left
        else:
            del self._of[segment]


def of_runs(runs: Iterable[ChunkRun]) -> Spans[bool]:
    """Return the set of the chunks of runs."""
    found: Spans[bool] = Spans()
    for run in runs:
        found.put(run, True)
    return found

"""Spans: a map from chunks to values that stores consecutive chunks with equal values together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from pagesim.kvcache.tiers.chunks import ChunkRun

V = TypeVar("V")


class Spans(Generic[V]):
    """Maps chunks to values other than None; consecutive chunks with equal values form one span."""

    __slots__ = ("_of",)

    def __init__(self) -> None:
        self._of: dict[int, list[tuple[int, int, V]]] = {}  # the spans of each segment, in order

    def __iter__(self) -> Iterator[tuple[ChunkRun, V]]:
        """Iterate over all spans."""
        for segment, spans in self._of.items():
            for first, end, value in spans:
                yield (segment, first, end), value

    def of(self, segment: int) -> list[tuple[int, int, V]]:
        """Return the spans of a segment in order, as (first chunk, end, value)."""
        return self._of.get(segment, [])

    def cut(self, run: ChunkRun) -> list[tuple[int, int, V | None]]:
        """Split a run where the value changes; the value is None where there is none."""
        segment, first, end = run
        found: list[tuple[int, int, V | None]] = []
        for start, stop, value in self._of.get(segment, ()):
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
        """Return whether any chunk of these runs has a value."""
        return any(self.there(run) for run in runs)

    def put(self, run: ChunkRun, value: V) -> None:
        """Set the value of all chunks of a run."""
        segment, first, end = run
        before: list[tuple[int, int, V]] = []
        after: list[tuple[int, int, V]] = []
        for span in self._of.get(segment, ()):
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
        self._of[segment] = [*before, (first, end, value), *after]

    def remove(self, run: ChunkRun) -> None:
        """Remove the values of all chunks of a run."""
        segment, first, end = run
        left: list[tuple[int, int, V]] = []
        for start, stop, value in self._of.get(segment, ()):
            if start < first:
                left.append((start, min(stop, first), value))
            if stop > end:
                left.append((max(start, end), stop, value))
        if left:
            self._of[segment] = left
        else:
            self._of.pop(segment, None)


def of_runs(runs: Iterable[ChunkRun]) -> Spans[bool]:
    """Return the chunks of these runs as a set of spans."""
    found: Spans[bool] = Spans()
    for run in runs:
        found.put(run, True)
    return found

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

    def at(self, run: ChunkRun) -> V:
        """Return the value of the first chunk of a run, which has one."""
        spans, place = self._of[run[0]], run[1]
        start, _, value = spans[-1]
        if start <= place:
            return value
        return next(value for _, end, value in spans if place < end)

    def before(self, run: ChunkRun) -> V | None:
        """Return the value of the chunk before a run, which has a span of its own; None where it has none."""
        spans = self._of[run[0]]
        if len(spans) > 1:
            for _, end, value in spans:
                if end == run[1]:
                    return value
        return None

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

    def put_all(self, runs: Iterable[ChunkRun], value: V) -> None:
        """Give all chunks of several runs a value, whatever they had before."""
        of = self._of
        for run in runs:
            segment, first, end = run
            if segment in of:
                self.put(run, value)
            else:
                of[segment] = [(first, end, value)]

    def has_none(self, runs: Iterable[ChunkRun]) -> bool:
        """Say whether no chunk of these has a value, as far as that is seen without a look at all spans."""
        of = self._of
        for segment, first, _ in runs:  # noqa: SIM110 (in half the time)
            if segment in of and of[segment][-1][1] > first:
                return False
        return True

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
    found.put_all(runs, True)
    return found

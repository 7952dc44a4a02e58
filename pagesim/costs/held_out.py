"""Held-out points: the common split of measurements, and errors of terms on unseen points."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import fmean, median
from zlib import crc32

import numpy as np

from pagesim.costs.table import Strict

EVERY = 5
"""One in this many inner points is held out."""

Point = tuple[float, ...]
"""A point: one size per axis."""


class TermError(Strict):
    """Absolute relative errors of a term on held-out measurements.

    Attributes:
        mean, worst: mean and largest error over the points; 0 if there are none.
        points: number of held-out points.
        median: median error over the points; None if it was not stored.
    """

    mean: float
    worst: float
    points: int
    median: float | None = None

    @classmethod
    def of(cls, errors: Sequence[float]) -> TermError:
        """Return the summary of absolute relative errors."""
        if not errors:
            return cls(mean=0.0, worst=0.0, points=0)
        return cls(mean=fmean(errors), median=median(errors), worst=max(errors), points=len(errors))

    @property
    def typical(self) -> float:
        """The median, or the mean if no median was stored."""
        return self.mean if self.median is None else self.median


def fifths(points: Sequence[Point], salt: str = "") -> list[list[int]]:
    """Split the inner points into fifths in the order of a hash, and return the indices in each.

    A point is inner if it lies between two points that differ from it along one axis only. It is also inner
    if one point is smaller and another larger in every size. All other points are left out, since a term
    would have to extrapolate to them. With fewer than five distinct points, all fifths are empty.

    Args:
        points: points with equally many sizes; all copies of a repeated point are in the same fifth.
        salt: name of what was measured, so that different sizes are held out for different terms.
    """
    found: list[list[int]] = [[] for _ in range(EVERY)]
    if len(set(points)) >= EVERY:
        inner = sorted(_inner(points), key=lambda point: (_hash(point, salt), point))
        fifth_of = {point: place % EVERY for place, point in enumerate(inner)}
        for index, point in enumerate(points):
            if point in fifth_of:
                found[fifth_of[point]].append(index)
    return found


def held_out(points: Sequence[Point], salt: str = "") -> list[int]:
    """Return the indices of the points to hold out, the first of the `fifths`.

    Args:
        points: points with equally many sizes.
        salt: name of what was measured.
    """
    return fifths(points, salt)[0]


def error_of(
    points: Sequence[tuple[Point, float]],
    term: Callable[[Sequence[tuple[Point, float]]], Callable[..., float]],
    salt: str = "",
) -> TermError:
    """Return the error of a term on the points that are held out of its fit.

    Args:
        points: sizes and measured seconds of each point.
        term: fits points, and returns a function from sizes to seconds.
        salt: name of what was measured.
    """
    unseen = set(held_out([point for point, _ in points], salt))
    if not unseen:
        return TermError.of([])
    made = term([each for index, each in enumerate(points) if index not in unseen])
    return TermError.of([abs(made(*points[at][0]) / points[at][1] - 1) for at in sorted(unseen)])


def _hash(point: Point, salt: str) -> int:
    return crc32(f"{salt}:{','.join(f'{size:.12g}' for size in point)}".encode())


def _inner(points: Sequence[Point]) -> set[Point]:
    """Return the inner points, as defined in `fifths`."""
    distinct = sorted(set(points))
    found: set[Point] = set()
    for axis in range(len(distinct[0]) if distinct else 0):
        lines: dict[Point, list[Point]] = defaultdict(list)
        for point in distinct:
            lines[(*point[:axis], *point[axis + 1 :])].append(point)
        for line in lines.values():
            found.update(sorted(line, key=lambda point: point[axis])[1:-1])
    sizes = np.array(distinct, np.float64)
    for point in distinct:
        if point not in found and (sizes < point).all(1).any() and (sizes > point).all(1).any():
            found.add(point)
    return found

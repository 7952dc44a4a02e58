"""Held out: the one split of measured points, and how wrong a term is on those that it has not seen."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import fmean, median
from zlib import crc32

import numpy as np

from pagesim.costs.table import Strict

EVERY = 5
"""One point in so many is held out."""

Point = tuple[float, ...]
"""A size on each axis."""


class TermError(Strict):
    """How wrong a term is on measurements held out of it: relative errors, in absolute value.

    Attributes:
        mean, worst: over the points; 0 where there are none.
        points: how many were held out.
        median: over the points; None where it was not kept.
    """

    mean: float
    worst: float
    points: int
    median: float | None = None

    @classmethod
    def of(cls, errors: Sequence[float]) -> TermError:
        """Return the error of relative errors, in absolute value."""
        if not errors:
            return cls(mean=0.0, worst=0.0, points=0)
        return cls(mean=fmean(errors), median=median(errors), worst=max(errors), points=len(errors))

    @property
    def typical(self) -> float:
        """The median, or the mean where no median was kept."""
        return self.mean if self.median is None else self.median


def fifths(points: Sequence[Point], salt: str = "") -> list[list[int]]:
    """Return the indices of the points of each fifth of the inner ones, ordered by a hash.

    A point is inner if there are points before and after it along an axis, the other sizes the same, or a
    point that is smaller in every size and one that is larger in every size. At the others a term would be
    extrapolated, and that is another question. Of fewer than five points none is in any.

    Args:
        points: as many sizes of each; of a point that is there more than once all are in one fifth or none.
        salt: what was measured, so that not the same sizes are held out everywhere.
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
    """Return the indices of the points that are held out: the first of the `fifths`.

    Args:
        points: as many sizes of each.
        salt: what was measured.
    """
    return fifths(points, salt)[0]


def error_of(
    points: Sequence[tuple[Point, float]],
    term: Callable[[Sequence[tuple[Point, float]]], Callable[..., float]],
    salt: str = "",
) -> TermError:
    """Return how wrong a term is on the fifth of the points that is held out of it.

    Args:
        points: sizes and seconds.
        term: makes a function of the sizes of the points that it is given.
        salt: what was measured.
    """
    unseen = set(held_out([point for point, _ in points], salt))
    if not unseen:
        return TermError.of([])
    made = term([each for index, each in enumerate(points) if index not in unseen])
    return TermError.of([abs(made(*points[at][0]) / points[at][1] - 1) for at in sorted(unseen)])


def _hash(point: Point, salt: str) -> int:
    return crc32(f"{salt}:{','.join(f'{size:.12g}' for size in point)}".encode())


def _inner(points: Sequence[Point]) -> set[Point]:
    """Return the points between others."""
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

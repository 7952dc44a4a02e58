"""Points of a grid: what was measured at pairs of sizes, made whole, and how wrong a hole in it would be."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from pagesim.costs.profiles.curves import Floats, risen
from pagesim.costs.profiles.fitting import unseen_of

Points = Mapping[tuple[int, int], float]
"""Seconds by two sizes."""


class Grid(NamedTuple):
    """Seconds at all pairs of two sizes.

    Attributes:
        rows, columns: sizes, rising, ``[R]`` and ``[C]``.
        seconds: never falling along a row, ``[R, C]``.
    """

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]


def whole(points: Points, columns: Collection[int] = ()) -> Grid:
    """Return a grid of points: straight along a row where one is missing, along its last slope beyond.

    Args:
        points: some of each row.
        columns: of the grid; all that some row has when left out.
    """
    rows = tuple(sorted({row for row, _ in points}))
    columns = tuple(sorted(columns or {column for _, column in points}))
    seconds = []
    for row in rows:
        at = np.array(sorted(column for one, column in points if one == row), np.float64)
        measured = risen(np.array([points[row, int(column)] for column in at]))
        filled: Floats = np.interp(columns, at, measured)
        if len(at) > 1:
            slope = (measured[-1] - measured[-2]) / (at[-1] - at[-2])
            filled += slope * np.maximum(0, np.array(columns) - at[-1])
        seconds.append(tuple(float(f"{each:.6g}") for each in filled))
    return Grid(rows, columns, tuple(seconds))


def gaps(points: Points) -> list[float]:
    """Return relative errors, in absolute value, of points that are left out one at a time.

    One in four of those with a neighbour on each of four sides is left out. It is then taken for the mean of
    the lines between its neighbours, along both sizes.
    """
    rows, columns = ({point[side] for point in points} for side in (0, 1))
    inner = {}
    for row, column in sorted(points):
        along_row = _line(column, {each: points[row, each] for each in columns if (row, each) in points})
        along_column = _line(row, {each: points[each, column] for each in rows if (each, column) in points})
        if along_row is not None and along_column is not None:
            inner[row, column] = (along_row + along_column) / 2
    at = list(inner)
    return [abs(inner[at[each]] / points[at[each]] - 1) for each in unseen_of(list(range(len(at))))]


def _line(size: int, seconds: Mapping[int, float]) -> float | None:
    """Return what the line between a size's neighbours has there; nothing where one is missing."""
    below, above = (
        max((each for each in seconds if each < size), default=None),
        min((each for each in seconds if each > size), default=None),
    )
    if below is None or above is None:
        return None
    share = (size - below) / (above - below)
    return seconds[below] + share * (seconds[above] - seconds[below])

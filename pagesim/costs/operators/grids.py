"""Grids: seconds over two or three sizes, as they were measured, and what lies between and beyond."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pagesim.costs.operators.table_rows import KERNEL, Floats, Ints, Rows

Point = tuple[int, ...]
"""A place in a grid: an index on each axis."""

Stretch = Callable[[float], float]
"""A size, so that seconds are as straight a line over it as can be."""

EVERY = 5
"""One point in so many is held out where errors are looked at."""


def plain(size: float) -> float:
    """Return the size itself."""
    return size


@dataclass(frozen=True, slots=True)
class Grid:
    """Seconds by size, and which kernel took them.

    Attributes:
        axes: sizes on each axis, rising.
        seconds: of every combination; NaN where nothing was measured.
        kernels: a number of each kernel; -1 where nothing was measured.
    """

    axes: tuple[Ints, ...]
    seconds: Floats
    kernels: Ints

    @classmethod
    def of(cls, rows: Rows, *names: str) -> Grid:
        """Return the grid of rows; what was timed twice is their geometric mean.

        Args:
            rows: measurements, of one thing but for these sizes.
            names: columns of the sizes, one an axis.
        """
        axes = tuple(np.unique(rows.ints(name)) for name in names)
        shape = tuple(len(axis) for axis in axes)
        at = tuple(np.searchsorted(axis, rows.ints(name)) for axis, name in zip(axes, names, strict=True))
        sums, counts = np.zeros(shape), np.zeros(shape)
        np.add.at(sums, at, np.log(rows.seconds))
        np.add.at(counts, at, 1)
        kernels = np.full(shape, -1, np.int64)
        known = {name: number for number, name in enumerate(rows.values(KERNEL))}
        kernels[at] = [known[name] for name in rows[KERNEL].tolist()]
        with np.errstate(invalid="ignore", divide="ignore"):
            seconds = np.where(counts > 0, np.exp(sums / counts), np.nan)
        return cls(axes, seconds, kernels)

    def points(self) -> list[Point]:
        """Return where something was measured, in order."""
        return [tuple(each) for each in np.argwhere(np.isfinite(self.seconds)).tolist()]

    def sizes(self, point: Point) -> tuple[int, ...]:
        """Return the sizes of a point."""
        return tuple(int(axis[at]) for axis, at in zip(self.axes, point, strict=True))

    def line(self, point: Point, axis: int, stretch: Stretch = plain, *, log: bool = False) -> float:
        """Return what the nearest points before and after on an axis give, of the same kernel.

        Args:
            point: where; what was measured there itself is not looked at.
            axis: along which.
            stretch: of sizes on it.
            log: whether the line is straight in the logarithm of seconds.

        Returns:
            Seconds; NaN if there is none before or none after.
        """
        along = tuple(slice(None) if each == axis else at for each, at in enumerate(point))
        seconds, at = self.seconds[along], point[axis]
        usable = np.isfinite(seconds) & (self.kernels[along] == self.kernels[point])
        usable[at] = False
        there = np.flatnonzero(usable)
        right = int(np.searchsorted(there, at))
        if right in (0, len(there)):
            return float("nan")
        before, after = int(there[right - 1]), int(there[right])
        sizes = self.axes[axis]
        low, here, high = (stretch(float(sizes[each])) for each in (before, at, after))
        share = (here - low) / (high - low)
        first, last = float(seconds[before]), float(seconds[after])
        return first * (last / first) ** share if log else first + (last - first) * share

    def held_out(self, salt: str, axis: int, fifth: int = 0) -> list[Point]:
        """Return the points that are held out: a fifth, by a hash of what they are.

        Args:
            salt: what the grid is of.
            axis: along which no kernel's first or last point is held out.
            fifth: which, from 0 to 4.
        """
        kept: set[Point] = set()
        lines: dict[tuple[int, ...], list[Point]] = {}
        points = self.points()
        for point in points:
            key = (*point[:axis], *point[axis + 1 :], int(self.kernels[point]))
            lines.setdefault(key, []).append(point)
        for line in lines.values():
            kept |= {line[0], line[-1]}
        return [
            point
            for point in points
            if point not in kept
            and zlib.crc32(f"{salt}:{','.join(map(str, self.sizes(point)))}".encode()) % EVERY == fifth
        ]

    def without(self, points: Sequence[Point]) -> Grid:
        """Return the grid as if nothing had been measured at these points but by which kernel."""
        seconds = self.seconds.copy()
        for point in points:
            seconds[point] = np.nan
        return Grid(self.axes, seconds, self.kernels)

    def filled(self, guess: Callable[[Grid, Point], float], points: Sequence[Point]) -> Grid:
        """Return the grid with what these points would take by the others."""
        seconds = self.seconds.copy()
        for point in points:
            seconds[point] = guess(self, point)
        return Grid(self.axes, seconds, self.kernels)

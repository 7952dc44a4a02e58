"""Matrix products: seconds of an [m, k] by [k, n] product with weights of one type."""

from __future__ import annotations

import numpy as np

from pagesim.costs.operators.grids import Grid, Point
from pagesim.costs.operators.table_rows import Floats, Ints, Rows

FAMILY, NAME = "gemm", "gemm_perf"
INTS, TEXTS = ("m", "n", "k"), ("gemm_dtype", "kernel_source")


class Gemm:
    """The products of one weight type: piecewise linear in m, linear in n and k between the sizes measured.

    Beyond the largest n or k seconds go with it; below the smallest they are its.

    Args:
        grid: over (m, n, k).
    """

    def __init__(self, grid: Grid) -> None:
        self.grid = _whole(grid)

    @classmethod
    def read(cls, rows: Rows, dtype: str) -> Gemm:
        """Return the products of a weight type; ``rows`` must hold some."""
        return cls(Grid.of(rows.where(gemm_dtype=dtype), "m", "n", "k"))

    def curve(self, n: int, k: int) -> tuple[Ints, Floats]:
        """Return the knots of seconds over m: sizes, rising, and seconds.

        Args:
            n: columns of the weights.
            k: rows of the weights.
        """
        sizes, corners = self.grid.axes[0], []
        for at_n, share_n in _corners(self.grid.axes[1], n):
            for at_k, share_k in _corners(self.grid.axes[2], k):
                corners.append((share_n * share_k, at_n, at_k))
        # Where one kernel ends, its time holds until the next begins.
        changes = [
            int(sizes[at]) - 1
            for _, at_n, at_k in corners
            for at in np.flatnonzero(np.diff(self.grid.kernels[:, at_n, at_k])) + 1
            if sizes[at] - sizes[at - 1] > 1
        ]
        knots = np.union1d(sizes, np.array(changes, np.int64))
        seconds = np.zeros(len(knots))
        for share, at_n, at_k in corners:
            seconds += share * self._along(knots, at_n, at_k)
        return knots, seconds

    def __call__(self, m: int, n: int, k: int) -> float:
        """Return the seconds of one product."""
        sizes, seconds = self.curve(n, k)
        return beyond(sizes, seconds, m)

    def _along(self, knots: Ints, n: int, k: int) -> Floats:
        """Return the seconds of a measured shape at sizes between which all of its knots lie."""
        sizes, seconds = self.grid.axes[0], self.grid.seconds[:, n, k]
        found = np.interp(knots, sizes, seconds)
        kernels = self.grid.kernels[:, n, k]
        for at in np.flatnonzero(np.diff(kernels)) + 1:
            between = (knots > sizes[at - 1]) & (knots < sizes[at])
            found[between] = seconds[at - 1]
        return found


LAUNCH_S = 20e-6
"""A kernel whose smallest products take longer than this was timed as the host launches it, one by one."""

SMALL = 512
"""Products with n and k of at most so many, and m of at most 64, take the device microseconds."""


def launched_by_graphs(gemm: Gemm, other: Gemm) -> tuple[Gemm, bool]:
    """Return the products as a graph launches them, and whether that makes a difference.

    Some kernels were timed as the host launches them, which takes longer than small products do on the device
    (60 to 230 µs for weights with scales by block). What took less than twice that is not known of the
    device; it counts as what the same product takes with weights of another type, if that is less.

    Args:
        gemm: of one type of weights.
        other: of another, that was timed in graphs, with as many bytes a weight.
    """
    grid = gemm.grid
    if any(not np.array_equal(one, two) for one, two in zip(grid.axes, other.grid.axes, strict=True)):
        return gemm, False
    m, n, k = grid.axes
    small = (m[:, None, None] <= 64) & (n[None, :, None] <= SMALL) & (k[None, None, :] <= SMALL)
    seconds = grid.seconds.copy()
    changed = False
    for kernel in np.unique(grid.kernels).tolist():
        mine = grid.kernels == kernel
        least = np.nanmedian(seconds[mine & small]) if (mine & small).any() else np.nanmin(seconds[mine])
        if least > LAUNCH_S:
            hidden = mine & (seconds < 2 * least)
            seconds[hidden] = np.minimum(seconds, other.grid.seconds)[hidden]
            changed = True
    return Gemm(Grid(grid.axes, seconds, grid.kernels)), changed


def beyond(sizes: Ints, seconds: Floats, size: float) -> float:
    """Return what a curve gives: its first seconds below the first size, in proportion beyond the last."""
    if size > sizes[-1]:
        return float(seconds[-1] * size / sizes[-1])
    return float(np.interp(size, sizes, seconds))


def guess(grid: Grid, point: Point) -> float:
    """Return what a product takes by its neighbours: the middle one of the lines along m, n and k."""
    lines = np.array([grid.line(point, axis) for axis in range(3)])
    lines = lines[np.isfinite(lines)]
    return float(np.exp(np.median(np.log(lines)))) if len(lines) else float("nan")


def guess_shape(grid: Grid, point: Point) -> float:
    """Return what a product takes by those of other shapes: the mean of the lines along n and k."""
    lines = np.array([grid.line(point, axis) for axis in (1, 2)])
    return float(np.nanmean(lines)) if np.isfinite(lines).any() else float("nan")


def _corners(axis: Ints, size: int) -> list[tuple[int, float]]:
    """Return the places between which a size lies, and the share that each has in it."""
    last = len(axis) - 1
    if size >= axis[last]:
        return [(last, size / int(axis[last]))]
    if size <= axis[0]:
        return [(0, 1.0)]
    right = int(np.searchsorted(axis, size))
    share = (size - int(axis[right - 1])) / int(axis[right] - axis[right - 1])
    return [(right, 1.0)] if share == 1 else [(right - 1, 1 - share), (right, share)]


def _whole(grid: Grid) -> Grid:
    """Return the grid with what was not measured: along m, else in proportion to a smaller k or n."""
    sizes, seconds, kernels = grid.axes[0], grid.seconds.copy(), grid.kernels.copy()
    for n in range(seconds.shape[1]):
        for k in range(seconds.shape[2]):
            column, known = seconds[:, n, k], np.isfinite(seconds[:, n, k])
            if known.all():
                continue
            if known.sum() >= 2:
                column[~known] = np.interp(sizes[~known], sizes[known], column[known])
                nearest = np.abs(sizes[~known][:, None] - sizes[known][None, :]).argmin(1)
                kernels[~known, n, k] = kernels[known, n, k][nearest]
            elif k or n:
                source = (n, k - 1) if k else (n - 1, k)
                factor = grid.axes[2][k] / grid.axes[2][k - 1] if k else grid.axes[1][n] / grid.axes[1][n - 1]
                seconds[:, n, k] = seconds[:, source[0], source[1]] * factor
                kernels[:, n, k] = kernels[:, source[0], source[1]]
    return Grid(grid.axes, seconds, kernels)

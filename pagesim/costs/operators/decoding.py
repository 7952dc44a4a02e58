"""Decode attention: seconds of one layer, one token a sequence, by sequences and context."""

from __future__ import annotations

import numpy as np

from pagesim.costs.operators.attention_rows import Attention, summed
from pagesim.costs.operators.grids import Grid, Point
from pagesim.costs.operators.planes import Plane, line_on
from pagesim.costs.operators.table_rows import Ints

NAME = "generation_attention_perf"
INTS = ("batch_size", "num_heads", "num_key_value_heads", "head_dim", "step", "window_size")


class Decoding(Attention):
    """Decode attention over a cache of one element; a step is one short of the context.

    Args:
        rows: of `NAME`.
        kv_dtype: of the cache: ``bfloat16`` or ``fp8``.
    """

    axis = "step"

    def plane(self, heads: int, kv_heads: int, head_dim: int, window: int = 0) -> Plane | None:
        """Return the seconds of a layer over sequences and context, None if nothing like it was measured.

        Context is the mean of the sequences', the token that is decoded included. Seconds are piecewise
        linear in it. A window that was not measured costs what a context of its size does.

        Args:
            heads: query heads on the GPU.
            kv_heads: key and value heads there.
            head_dim: width of a head.
            window: tokens that are looked back on, 0 for all.
        """
        planes = self._planes(heads, kv_heads, head_dim, window, lambda grid: plane_of(grid, ahead=1))
        if not planes:
            whole = self.plane(heads, kv_heads, head_dim) if window else None
            return None if whole is None else _within(whole, window)
        return Plane(planes[0][1].batch, planes[0][1].length, summed(planes))


def plane_of(grid: Grid, ahead: int) -> Plane:
    """Return a grid over sequences and steps as a plane over sequences and context.

    Args:
        grid: gaps between points of a batch are lines, and beyond its last the last two go on.
        ahead: tokens of context beyond a step.
    """
    length: Ints = grid.axes[1] + ahead
    return Plane(grid.axes[0], length, line_on(grid.seconds, length))


def guess(grid: Grid, point: Point) -> float:
    """Return what attention takes by its neighbours: the mean of the lines along sequences and context."""
    lines = np.array([grid.line(point, axis) for axis in (0, 1)])
    return float(np.nanmean(lines)) if np.isfinite(lines).any() else float("nan")


def _within(whole: Plane, window: int) -> Plane:
    """Return what attention to all tokens takes where only so many are within reach."""
    length = np.append(whole.length[whole.length < window], window)
    seconds = np.array([[whole.along(row, size) for size in length] for row in range(len(whole.batch))])
    flat = np.append(length, 2 * window)
    return Plane(whole.batch, flat, np.hstack([seconds, seconds[:, -1:]]))

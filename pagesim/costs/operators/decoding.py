"""Decode attention: seconds of one layer, one token a sequence, by sequences and context."""

from __future__ import annotations

import numpy as np

from pagesim.costs.operators.grids import Grid, Point
from pagesim.costs.operators.heads import stands_for
from pagesim.costs.operators.planes import Plane, line_on
from pagesim.costs.operators.rows import Ints, Rows

FAMILY, NAME = "attention", "generation_attention_perf"
INTS = ("batch_size", "num_heads", "num_key_value_heads", "head_dim", "step", "window_size")
TEXTS = ("kv_cache_dtype", "attn_dtype", "kernel_source")
ABSENT = (("window_size", 0),)
"""Tables before windows were measured have no such column."""

KEY = ("num_heads", "num_key_value_heads", "head_dim", "window_size")


class Decoding:
    """Decode attention over a cache of one element.

    Args:
        rows: of `NAME`.
        kv_dtype: of the cache: ``bfloat16`` or ``fp8``.
    """

    def __init__(self, rows: Rows, kv_dtype: str) -> None:
        self._rows = rows.where(kv_cache_dtype=kv_dtype, attn_dtype="bfloat16")
        self._known = {key for key, _ in self._rows.groups(*KEY)}

    def grid(self, heads: int, kv_heads: int, head_dim: int, window: int) -> Grid:
        """Return what was measured of some heads over sequences and steps, a step one short of context."""
        values = dict(zip(KEY, (heads, kv_heads, head_dim, window), strict=True))
        return Grid.of(self._rows.where(**values), "batch_size", "step")

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
        known = {(q, kv) for q, kv, width, reach in self._known if (width, reach) == (head_dim, window)}
        stands = stands_for(heads, kv_heads, known)
        if not stands:
            whole = self.plane(heads, kv_heads, head_dim) if window else None
            return None if whole is None else _within(whole, window)
        planes = [
            (one, plane_of(self.grid(one.heads, one.kv_heads, head_dim, window), ahead=1)) for one in stands
        ]
        batch, length = planes[0][1].batch, planes[0][1].length
        seconds = np.zeros((len(batch), len(length)))
        for one, plane in planes:
            for row, sequences in enumerate(batch.tolist()):
                for column, context in enumerate(length.tolist()):
                    seconds[row, column] += one.share * plane(sequences * one.factor, context)
        return Plane(batch, length, seconds)


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

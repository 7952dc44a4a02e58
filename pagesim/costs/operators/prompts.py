"""Prompts' attention: seconds of one layer, whole prompts of one length."""

from __future__ import annotations

import numpy as np

from pagesim.costs.operators.attention_rows import Attention, summed
from pagesim.costs.operators.grids import Grid, Point
from pagesim.costs.operators.planes import Plane
from pagesim.costs.operators.table_rows import Floats, Ints

NAME = "context_attention_perf"
INTS = ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "window_size")

BENT = 1.5
"""Prompts' seconds are nearly straight over their length to this power, between what goes with tokens and
what goes with pairs: on the published tables a line over the length itself is 6 % too slow in the mean, one
over its square 4 % too fast, this one off by 1 %."""


def bent(length: float) -> float:
    """Return a prompt's length so stretched that seconds over it are nearly straight (see `BENT`)."""
    return float(length**BENT)


class Prompts(Attention):
    """Attention of prompts, keys and values going into a cache of one element.

    Args:
        rows: of `NAME`.
        kv_dtype: of the cache: ``bfloat16`` or ``fp8``.
    """

    axis = "isl"

    def plane(self, heads: int, kv_heads: int, head_dim: int, window: int = 0) -> Plane | None:
        """Return the seconds of a layer over prompts and their length, None if nothing like it was measured.

        Args:
            heads: query heads on the GPU.
            kv_heads: key and value heads there.
            head_dim: width of a head.
            window: tokens that are looked back on, 0 for all.
        """
        planes = self._planes(heads, kv_heads, head_dim, window, plane_of)
        if not planes:
            return None
        most = min(plane.most // one.factor for one, plane in planes)
        return Plane(planes[0][1].batch, planes[0][1].length, summed(planes), BENT, most)


def plane_of(grid: Grid) -> Plane:
    """Return a grid over prompts and lengths as a plane without a gap.

    Many long prompts at once are not measured: they take their share more than as many as were.
    """
    tokens = np.multiply.outer(grid.axes[0], grid.axes[1])
    most = int(tokens[np.isfinite(grid.seconds)].max())
    return Plane(grid.axes[0], grid.axes[1], _more(grid.seconds, grid.axes[0]), BENT, most)


def guess(grid: Grid, point: Point) -> float:
    """Return what attention takes by its neighbours: the geometric mean of lines along prompts and length."""
    lines = np.array([grid.line(point, 0), grid.line(point, 1, bent)])
    return float(np.exp(np.nanmean(np.log(lines)))) if np.isfinite(lines).any() else float("nan")


def _more(seconds: Floats, batch: Ints) -> Floats:
    found = seconds.copy()
    for column in found.T:
        known = np.flatnonzero(np.isfinite(column))
        if not len(known) or len(known) == len(column):
            continue
        gaps = np.flatnonzero(~np.isfinite(column))
        column[gaps] = np.interp(batch[gaps], batch[known], column[known])
        last = int(known[-1])
        column[last + 1 :] = column[last] * batch[last + 1 :] / batch[last]
    return found

"""What tables of decode and of prompts' attention have in common: rows by heads, width and window."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from pagesim.costs.operators.grids import Grid
from pagesim.costs.operators.heads import Stand, stands_for
from pagesim.costs.operators.planes import Plane
from pagesim.costs.operators.table_rows import Floats, Rows

FAMILY = "attention"
TEXTS = ("kv_cache_dtype", "attn_dtype", "kernel_source")
ABSENT = (("window_size", 0),)
"""Tables before windows were measured have no such column."""

KEY = ("num_heads", "num_key_value_heads", "head_dim", "window_size")


class Attention:
    """Attention over a cache of one element.

    Args:
        rows: of a table of attention.
        kv_dtype: of the cache: ``bfloat16`` or ``fp8``.
    """

    axis: ClassVar[str]
    """The column that is timed over beside the number of sequences."""

    def __init__(self, rows: Rows, kv_dtype: str) -> None:
        self._rows = rows.where(kv_cache_dtype=kv_dtype, attn_dtype="bfloat16")
        self._known = {key for key, _ in self._rows.groups(*KEY)}

    def grid(self, heads: int, kv_heads: int, head_dim: int, window: int) -> Grid:
        """Return what was measured of some heads: over sequences and the other axis."""
        values = dict(zip(KEY, (heads, kv_heads, head_dim, window), strict=True))
        return Grid.of(self._rows.where(**values), "batch_size", self.axis)

    def _planes(
        self, heads: int, kv_heads: int, head_dim: int, window: int, plane_of: Callable[[Grid], Plane]
    ) -> list[tuple[Stand, Plane]]:
        """Return the planes of the heads that stand for these; none if nothing like them was measured."""
        known = {(q, kv) for q, kv, width, reach in self._known if (width, reach) == (head_dim, window)}
        return [
            (one, plane_of(self.grid(one.heads, one.kv_heads, head_dim, window)))
            for one in stands_for(heads, kv_heads, known)
        ]


def summed(planes: list[tuple[Stand, Plane]]) -> Floats:
    """Return the seconds of heads, by those that stand for them, on the axes of the first of these."""
    batch, length = planes[0][1].batch, planes[0][1].length
    seconds = np.zeros((len(batch), len(length)))
    for one, plane in planes:
        for row, sequences in enumerate(batch.tolist()):
            for column, size in enumerate(length.tolist()):
                seconds[row, column] += one.share * plane(sequences * one.factor, size)
    return seconds

"""Gated delta nets: seconds of one layer's convolution and recurrence, the sum of their kernels."""

from __future__ import annotations

import numpy as np

from pagesim.costs.operators.grids import Grid
from pagesim.costs.operators.planes import Plane
from pagesim.costs.operators.prompts import plane_of
from pagesim.costs.operators.table_rows import Rows

FAMILY, NAME = "linear_attention", "gdn_perf"
INTS = ("batch_size", "seq_len", "d_model", "num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim")
TEXTS = ("phase", "kernel_source")


class States:
    """Recurrent layers of a shape.

    Args:
        rows: of `NAME`.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def shapes(self) -> list[tuple[int, int, int]]:
        """Return what was measured: hidden size, key heads and value heads on a GPU."""
        return [key for key, _ in self._rows.groups("d_model", "num_k_heads", "num_v_heads")]

    def grids(self, hidden: int, k_heads: int, v_heads: int, phase: str) -> list[Grid]:
        """Return what was measured of each kernel, over sequences and their length."""
        rows = self._rows.where(d_model=hidden, num_k_heads=k_heads, num_v_heads=v_heads, phase=phase)
        return [Grid.of(of, "batch_size", "seq_len") for _, of in rows.groups("kernel_source")]

    def plane(self, hidden: int, k_heads: int, v_heads: int, phase: str) -> Plane | None:
        """Return the seconds of a layer over sequences and their length; None if it was not measured.

        Args:
            hidden: width of the residual stream.
            k_heads: key heads on the GPU.
            v_heads: value heads there.
            phase: ``context`` (lengths of prompts) or ``generation`` (length 1).
        """
        grids = self.grids(hidden, k_heads, v_heads, phase)
        if not grids:
            return None
        planes = [plane_of(grid) for grid in grids]
        batch = planes[0].batch
        length = planes[0].length
        seconds = np.zeros((len(batch), len(length)))
        for plane in planes:
            for row, sequences in enumerate(batch.tolist()):
                for column, size in enumerate(length.tolist()):
                    seconds[row, column] += plane(sequences, size)
        return Plane(batch, length, seconds, planes[0].power)

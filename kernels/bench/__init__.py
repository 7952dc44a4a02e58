"""The bench: measures kernels and swaps over grids, in rows that say how they were measured.

Nothing in this module needs torch before a point is measured, so that rows can be read anywhere.
"""

from __future__ import annotations

from pagesim.kernels.bench.defaults import default_points
from pagesim.kernels.bench.grid import Grid
from pagesim.kernels.bench.rows import BENCHES, SCHEMA, Point, Row
from pagesim.kernels.bench.run import Outcome, run_points
from pagesim.kernels.bench.store import read_rows

__all__ = [
    "BENCHES",
    "SCHEMA",
    "Grid",
    "Outcome",
    "Point",
    "Row",
    "default_points",
    "read_rows",
    "run_points",
]

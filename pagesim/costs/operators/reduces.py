"""All-reduces: seconds of one, by how many elements it sums and whether a graph launches it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pagesim.costs.operators.gemm import beyond
from pagesim.costs.operators.grids import Grid, Point
from pagesim.costs.operators.table_rows import Rows

FAMILY, NAME = "comm", "custom_allreduce_perf"
INTS, TEXTS = ("num_gpus", "message_size"), ("backend", "kernel_source")
NCCL_INTS, NCCL_TEXTS = ("num_gpus", "message_size"), ("nccl_dtype", "op_name", "kernel_source")

GRAPH, EAGER = "vllm_graph", "vllm_eager"

EAGER_S = 16e-6
"""Seconds that an all-reduce which no graph launches takes beside what the table has of it: found by
comparing sums of operators with whole runs, not in the tables."""


class Reduces:
    """All-reduces among some GPUs of one node, of 16-bit elements.

    Args:
        rows: of `NAME`.
        nccl: NCCL's, for messages larger than any that was measured of the engine's own; or None.
    """

    def __init__(self, rows: Rows, nccl: Rows | None = None) -> None:
        self._rows = rows
        self._nccl = None if nccl is None else nccl.where(op_name="all_reduce", nccl_dtype="half")

    def curve(self, gpus: int, *, graph: bool) -> Callable[[float], float] | None:
        """Return the seconds of one all-reduce by elements; None if none was measured among so many GPUs."""
        rows = self._rows.where(num_gpus=gpus, backend=GRAPH if graph else EAGER)
        if not len(rows):
            return None
        own = Grid.of(rows, "message_size")
        extra = 0.0 if graph else EAGER_S
        large = None if self._nccl is None else self._nccl.where(num_gpus=gpus)
        theirs = Grid.of(large, "message_size") if large is not None and len(large) else None

        def seconds(elements: float) -> float:
            sizes = own.axes[0]
            if elements > sizes[-1] and theirs is not None and theirs.axes[0][-1] > sizes[-1]:
                return extra + beyond(theirs.axes[0], theirs.seconds, elements)
            return extra + beyond(sizes, own.seconds, elements)

        return seconds


def series(rows: Rows) -> Grid:
    """Return all that was measured over elements, GPUs and the way of launching, in order of its name."""
    launches = rows.values("backend")
    numbered = {name: rows[name] for name in (*INTS, "kernel_source", "seconds")}
    numbered["launch"] = np.array([launches.index(each) for each in rows["backend"].tolist()], np.int64)
    return Grid.of(Rows(rows.file, numbered), "message_size", "num_gpus", "launch")


def guess(grid: Grid, point: Point) -> float:
    """Return what an all-reduce takes by its neighbours, of a `series`.

    It is the middle one of a line over elements, and of what other all-reduces of as many elements took
    (among other GPUs, or launched otherwise), each times what it differs by before and after. All jump where
    the engine goes over to another algorithm.
    """
    size, gpus, launch = point
    found = [grid.line(point, 0)]
    if not np.isfinite(found[0]):
        return found[0]
    sizes, mine = np.log(grid.axes[0]), grid.seconds[:, gpus, launch]
    for other in np.ndindex(*grid.seconds.shape[1:]):
        theirs = grid.seconds[:, other[0], other[1]]
        both = np.isfinite(mine) & np.isfinite(theirs)
        both[size] = False
        if (other[0] == gpus) != (other[1] == launch) and np.isfinite(theirs[size]) and both.sum() > 1:
            ratio = np.interp(sizes[size], sizes[both], np.log(mine[both] / theirs[both]))
            found.append(float(theirs[size] * np.exp(ratio)))
    return float(np.exp(np.median(np.log(found))))

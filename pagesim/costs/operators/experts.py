"""Experts: seconds of one layer's, routing and sums included, by tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pagesim.costs.operators.grids import Grid, Point
from pagesim.costs.operators.rows import Floats, Ints, Rows

FAMILY, NAME = "moe", "moe_perf"
INTS = (
    *("num_tokens", "hidden_size", "inter_size", "topk", "num_experts"),
    *("moe_tp_size", "moe_ep_size"),
)
TEXTS = ("moe_dtype", "distribution", "kernel_source")
KEY = ("hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")

ROUTINGS = ("power_law_1.2", "power_law_1.01", "balanced")
"""How tokens choose experts, in the order in which one stands in for another that was not measured."""


class Experts:
    """Experts of one weight type.

    Args:
        rows: of `NAME`.
        dtype: of the experts' weights, as the table calls it.
    """

    def __init__(self, rows: Rows, dtype: str) -> None:
        self._rows = rows.where(moe_dtype=dtype)

    def grid(
        self, shape: tuple[int, int, int, int], moe_tp: int, moe_ep: int, routings: Sequence[str] = ROUTINGS
    ) -> tuple[str, Grid] | None:
        """Return what was measured over tokens, and with which routing; None if nothing was.

        Args:
            shape: hidden size, an expert's inner width, experts a token visits, experts.
            moe_tp: GPUs over which each expert is divided.
            moe_ep: GPUs over which experts are dealt out.
            routings: those that will do, the best first.
        """
        rows = self._rows.where(**dict(zip(KEY, (*shape, moe_tp, moe_ep), strict=True)))
        for routing in routings:
            of = rows.where(distribution=routing)
            if len(of):
                return routing, Grid.of(of, "num_tokens")
        return None


def curve(grid: Grid, sizes: Ints) -> Floats:
    """Return the seconds of so many tokens: straight between those measured, both in their logarithms.

    Below the first size they are its, beyond the last they go with the tokens.
    """
    known, seconds = grid.axes[0], grid.seconds
    found = np.exp(np.interp(np.log(sizes), np.log(known), np.log(seconds)))
    return np.asarray(np.where(sizes > known[-1], seconds[-1] * sizes / known[-1], found), np.float64)


def guess(grid: Grid, point: Point) -> float:
    """Return what experts take by the sizes before and after, straight in the logarithms of both."""
    return grid.line(point, 0, math.log, log=True)

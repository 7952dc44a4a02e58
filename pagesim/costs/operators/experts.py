"""Experts: seconds of one layer's, routing and sums included, by tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pagesim.costs.operators.grids import Grid, Point
from pagesim.costs.operators.table_rows import KERNEL, Floats, Ints, Rows
from pagesim.errors import PagesimError, brief

FAMILY, NAME = "moe", "moe_perf"
INTS = (
    *("num_tokens", "hidden_size", "inter_size", "topk", "num_experts"),
    *("moe_tp_size", "moe_ep_size"),
)
TEXTS = ("moe_dtype", "distribution", "kernel_source")
KEY = ("hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")

ROUTINGS = ("power_law_1.2", "power_law_1.01", "balanced")
"""How tokens choose experts, in the order in which one stands in for another that was not measured."""


KERNELS = {
    "triton": ("fused_moe", "triton"),
    "flashinfer_trtllm": ("flashinfer_trtllm",),
    "flashinfer_cutlass": ("flashinfer_cutlass",),
    "marlin": ("marlin",),
}
"""Kernels of experts as vLLM's ``--moe-backend`` calls them, and what is in the tables' names of each."""

SHARED = ("flashinfer_trtllm", "flashinfer_cutlass")
"""Kernels of a library that several engines call: what one engine's tables lack, another's may have."""


class Experts:
    """Experts of one weight type.

    Args:
        rows: of `NAME`.
        dtype: of the experts' weights, as the table calls it.
        kernel: one of `KERNELS`; any when left out.

    Raises:
        PagesimError: there is no such kernel.
    """

    def __init__(self, rows: Rows, dtype: str, kernel: str | None = None) -> None:
        of_type = rows.where(moe_dtype=dtype)
        self._rows = of_type if kernel is None else of_kernels(of_type, (kernel,))

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


def of_kernels(rows: Rows, kernels: Sequence[str]) -> Rows:
    """Return the rows of kernels of these names.

    Raises:
        PagesimError: one is none of `KERNELS`.
    """
    if unknown := [each for each in kernels if each not in KERNELS]:
        raise PagesimError(f"moe_backend is {brief(unknown[0], 80)}; it must be one of {', '.join(KERNELS)}")
    words = [word for each in kernels for word in KERNELS[each]]
    names = rows[KERNEL].tolist()
    return rows.at(np.array([any(word in name for word in words) for name in names], np.bool_))


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

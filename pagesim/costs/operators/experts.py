"""Experts: seconds of one layer's experts over tokens, including routing and sums."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from pagesim.costs.operators.bounds import experts_bound
from pagesim.costs.operators.dtypes import in_words, weights_of
from pagesim.costs.operators.tables import Chip, Floats, Ints, OperatorTable
from pagesim.costs.table import line
from pagesim.errors import PagesimError, brief

FAMILY = "experts"

ROUTINGS = ("power_law_1.2", "power_law_1.01", "balanced")
"""How timings distributed tokens over experts; the keys of a table of experts hold the index in this list."""

KERNELS = {
    "triton": ("fused_moe", "triton"),
    "flashinfer_trtllm": ("flashinfer_trtllm",),
    "flashinfer_cutlass": ("flashinfer_cutlass",),
    "marlin": ("marlin",),
}
"""Kernels of experts by their names in vLLM's ``--moe-backend``, and parts of their names in the tables."""

Shape = tuple[int, int, int, int]
"""Hidden size, an expert's inner width, experts per token, number of experts."""


class Experts(NamedTuple):
    """Seconds of one layer's experts over tokens.

    Attributes:
        table: source table.
        tokens: timed numbers of tokens, rising, ``[T]``.
        seconds: seconds at each number of tokens, ``[T]``.
        notes: what a user should know, one sentence each.
    """

    table: OperatorTable
    tokens: Ints
    seconds: Floats
    notes: tuple[str, ...]

    def at(self, tokens: Ints) -> Floats:
        """Return the seconds of other numbers of tokens, interpolated linearly in log-log space."""
        return line(self.tokens, self.seconds, tokens, log=True)


def experts(
    chip: Chip,
    shape: Shape,
    dtype: str,
    *,
    moe_tp: int = 1,
    moe_ep: int = 1,
    kernel: str | None = None,
    balanced: bool = False,
) -> Experts | None:
    """Return the timings of a layer's experts; None if no experts were timed at all.

    For an untimed shape or type, the most similar one is used, times the ratio of their bounds.

    Args:
        chip: the GPU and its measurements.
        shape: shape of the experts.
        dtype: type of their weights, by its name in the tables.
        moe_tp: GPUs over which each expert is divided.
        moe_ep: GPUs over which whole experts are distributed.
        kernel: one of `KERNELS`; by default, the first that was timed.
        balanced: whether the model's router is trained to balance its load.

    Raises:
        PagesimError: there is no such kernel.
    """
    if kernel is not None:
        check_kernel(kernel)
    routings = (1, 0, 2) if balanced else (0, 1, 2)
    key = (*shape, moe_tp, moe_ep)
    for table in _tables(chip, dtype, kernel):
        for routing in routings:
            row = table.row(*key, routing)
            if row is not None:
                return _found(table, row, ROUTINGS[routing])
    return _nearest(chip, key, dtype, kernel, routings)


def check_kernel(kernel: str) -> None:
    """Reject a kernel of experts that is not in `KERNELS`.

    Raises:
        PagesimError: the kernel is not in `KERNELS`.
    """
    if kernel not in KERNELS:
        raise PagesimError(f"moe_backend is {brief(kernel, 80)}; it must be one of {', '.join(KERNELS)}")


def _tables(chip: Chip, dtype: str, kernel: str | None) -> list[OperatorTable]:
    found = chip.tables.find(FAMILY, dtype)
    return [each for each in found if kernel in (None, each.name[2])]


def _found(table: OperatorTable, row: Floats, routing: str) -> Experts:
    known = np.isfinite(row)
    notes = [f"experts were timed with tokens dealt out by {routing}"]
    if table.release.startswith("sglang"):
        notes.append(
            f"experts are those of {table.release}: vLLM's tables lack them, and both run the same library's "
            f"kernel ({table.name[2]})"
        )
    return Experts(table, table.axes[0][known], row[known], tuple(notes))


def _nearest(
    chip: Chip, key: tuple[int, ...], dtype: str, kernel: str | None, routings: tuple[int, ...]
) -> Experts | None:
    """Return the timed experts most similar to a key, scaled to it by the ratio of their bounds."""
    choices = list(_likely(chip, key, dtype, kernel, routings))
    if not choices:
        return None
    _, table, row = min(choices, key=lambda each: each[0])
    *shape, moe_tp, moe_ep, _ = table.keys[row].tolist()
    known = np.isfinite(table.seconds[row])
    tokens = table.axes[0][known]
    hidden, inner, visited, count = shape
    timed = table.name[1]
    ours = experts_bound(chip.gpu, weights_of(dtype), _shape(key), key[4], key[5], tokens)
    like = (hidden, inner, visited, count)
    theirs = experts_bound(chip.gpu, weights_of(timed), like, moe_tp, moe_ep, tokens)
    said = (
        f"experts of this shape in {in_words(dtype)} were not timed on {chip.gpu.name}: those of hidden "
        f"{hidden}, inner {inner}, {visited} of {count} in {in_words(timed)} over {moe_tp} and {moe_ep} GPUs "
        "count, times the ratio of their bounds"
    )
    return Experts(table, tokens, table.seconds[row][known] * ours / theirs, (said,))


def _likely(
    chip: Chip, key: tuple[int, ...], dtype: str, kernel: str | None, routings: tuple[int, ...]
) -> Iterator[tuple[tuple[float, int], OperatorTable, int]]:
    """Yield each table's best row with its dissimilarity, in which type weighs more than shape."""
    tables = _tables(chip, dtype, kernel) or _tables(chip, dtype, None) or chip.tables.find(FAMILY)
    wanted = weights_of(dtype).bits
    for place, table in enumerate(tables):
        bits = weights_of(table.name[1]).bits
        keys = table.keys[:, :6].astype(np.float64)
        apart = np.abs(np.log(keys / np.array(key, np.float64))).sum(1) + 4 * abs(np.log(bits / wanted))
        order = np.array([routings.index(each) for each in table.keys[:, 6].tolist()])
        row = int(np.lexsort((order, apart))[0])
        yield (float(apart[row]), place), table, row


def _shape(key: tuple[int, ...]) -> Shape:
    return key[0], key[1], key[2], key[3]

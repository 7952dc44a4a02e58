"""What all attention cases share: a point's bytes and operations, and the check against float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt

import torch

from pagesim.kernels.bench.inputs import DTYPES, TOLERANCE, Inputs, query_dtype
from pagesim.kernels.bench.rows import Point, queries_of, read_tokens, visible_pairs
from pagesim.kernels.bench.session import Case
from pagesim.kernels.reference import attend
from pagesim.kernels.timing import Call

CHECKED = 4
"""Number of first and of last queries per sequence to compare with float64."""


def make_case(point: Point, calls: Sequence[Call], check: Callable[[], float]) -> Case:
    """Return a case of a point's queries, which are the last tokens of their contexts."""
    batch, wide = point["batch"], point["q_heads"] * point["head_size"]
    tokens = read_tokens(point)
    moved = 2 * batch * tokens * point["kv_heads"] * point["head_size"] * DTYPES[point["dtype"]].itemsize
    moved += 2 * batch * queries_of(point) * wide * query_dtype(point["dtype"]).itemsize
    if "block_size" in point.parameters:
        moved += 4 * batch * -(-tokens // point["block_size"])
    return Case(
        calls,
        bytes_moved=moved,
        flops=4 * visible_pairs(point) * wide,
        check=check,
        tolerance=TOLERANCE[point["dtype"]],
    )


def poisoned(calls: Sequence[Call], outs: torch.Tensor | None) -> Callable[[], torch.Tensor]:
    """Return a function that runs the first call over outputs that hold NaN, and returns its result."""

    def first() -> torch.Tensor:
        if outs is not None:
            outs.fill_(torch.nan)
        output: torch.Tensor = calls[0]()
        return output

    return first


def error_of(
    got: torch.Tensor, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int | None = None
) -> float:
    """Return max|error| / max|exact| of some queries' attention, relative to float64."""
    exact = attend(q.double(), keys.double(), values.double(), 1 / sqrt(q.shape[-1]), window=window)
    return float((got.double() - exact).abs().max() / exact.abs().max())


def check(point: Point, given: Inputs, output: Callable[[], torch.Tensor]) -> Callable[[], float]:
    """Return a check of the first and last queries of two sequences against float64."""
    queries, context, window = queries_of(point), point["context"], point.parameters.get("window")

    def errors() -> float:
        got = output().reshape(-1, *given.queries.shape[2:])
        found = []
        for row in {0, point["batch"] // 2}:
            keys, values = given.tokens(row)
            for first, last in {(0, min(CHECKED, queries)), (max(0, queries - CHECKED), queries)}:
                rows = slice(row * queries + first, row * queries + last)
                seen = context - queries + last
                found.append(error_of(got[rows], given.queries[0, rows], keys[:seen], values[:seen], window))
        return max(found)

    return errors

"""What the cases of attention share: bytes and operations of a point, and the check against float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any

import torch

from pagesim.kernels.bench.inputs import DTYPES, TOLERANCE, Inputs, query_dtype
from pagesim.kernels.bench.rows import Point, read_tokens, visible_pairs
from pagesim.kernels.bench.session import Case
from pagesim.kernels.reference import attend
from pagesim.kernels.timing import Call


def make_case(point: Point, calls: Sequence[Call], rows: int, check: Callable[[], float]) -> Case:
    """Return a case of ``rows`` queries a sequence; the queries are the last tokens of their contexts."""
    batch, wide = point["batch"], point["q_heads"] * point["head_size"]
    tokens = read_tokens(point)
    moved = 2 * batch * tokens * point["kv_heads"] * point["head_size"] * DTYPES[point["dtype"]].itemsize
    moved += 2 * batch * rows * wide * query_dtype(point["dtype"]).itemsize
    if "block_size" in point.parameters:
        moved += 4 * batch * -(-tokens // point["block_size"])
    return Case(
        calls,
        bytes_moved=moved,
        flops=4 * visible_pairs(point) * wide,
        check=check,
        tolerance=TOLERANCE[point["dtype"]],
        columns=tuned_columns,
    )


def tuned_columns() -> dict[str, Any]:
    """Return the configuration that the attention kernel was last tuned to, on a GPU."""
    if not torch.cuda.is_available():
        return {}
    from pagesim.kernels.attention import TUNABLE

    best = getattr(TUNABLE.tuned, "best_config", None)
    return {"config": None if best is None else str(best)}


def poisoned(calls: Sequence[Call], outs: torch.Tensor | None) -> Callable[[], torch.Tensor]:
    """Return what runs the first call over outputs that hold NaN, and returns its result."""

    def first() -> torch.Tensor:
        if outs is not None:
            outs.fill_(torch.nan)
        output: torch.Tensor = calls[0]()
        return output

    return first


def error_of(
    got: torch.Tensor, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int | None
) -> float:
    """Return max|error| / max|exact| of some queries' attention, computed again in float64."""
    exact = attend(q.double(), keys.double(), values.double(), 1 / sqrt(q.shape[-1]), window=window)
    return float((got.double() - exact).abs().max() / exact.abs().max())


def check_decode(
    given: Inputs, output: Callable[[], torch.Tensor], queries: int = 1, window: int | None = None
) -> Callable[[], float]:
    """Return what compares the output of two sequences, a longest one among them, with float64."""

    def check() -> float:
        got = output().reshape(-1, *given.queries.shape[2:])
        errors = []
        for row in {int(given.lengths.argmax()), len(given.lengths) // 2}:
            rows = slice(row * queries, (row + 1) * queries)
            errors.append(error_of(got[rows], given.queries[0, rows], *given.tokens(row), window))
        return max(errors)

    return check


def check_prefill(point: Point, given: Inputs, output: Callable[[], torch.Tensor]) -> Callable[[], float]:
    """Return what compares the first and the last tokens of one sequence with float64."""
    query, context, row = point["query"], point["context"], point["batch"] // 2
    window = point.parameters.get("window")

    def check() -> float:
        got = output()
        keys, values = given.tokens(row)
        errors = []
        for first, last in ((0, min(4, query)), (max(0, query - 4), query)):
            rows = slice(row * query + first, row * query + last)
            seen = context - query + last
            errors.append(error_of(got[rows], given.queries[0, rows], keys[:seen], values[:seen], window))
        return max(errors)

    return check

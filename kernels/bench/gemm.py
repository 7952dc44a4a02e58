"""The linear layers' matrix products: an iteration's time outside attention."""

from __future__ import annotations

import torch

from pagesim.kernels.bench.inputs import DTYPES
from pagesim.kernels.bench.rows import Point
from pagesim.kernels.bench.session import Case, Session
from pagesim.kernels.timing import Call, rotations


def prepare(point: Point, session: Session) -> Case:
    """Prepare ``linear``: m tokens of k numbers times weights ``[n, k]``, with torch's choice of kernel."""
    m, n, k = point["m"], point["n"], point["k"]
    dtype = DTYPES[point["dtype"]]
    moved = (m * k + n * k + m * n) * dtype.itemsize
    sets = rotations(moved, session.device)
    tokens = session.random(m, k, dtype=dtype)
    weights = session.random(sets, n, k, dtype=dtype)

    def call(weight: torch.Tensor) -> Call:
        return lambda: torch.nn.functional.linear(tokens, weight)

    return Case([call(weight) for weight in weights], bytes_moved=moved, flops=2 * m * n * k)

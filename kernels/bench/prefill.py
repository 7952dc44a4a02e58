"""Prefill: the newest tokens of each context, causal, paged; and torch's own attention over whole prompts."""

from __future__ import annotations

import torch

from pagesim.kernels import paged_attention
from pagesim.kernels.bench import inputs
from pagesim.kernels.bench.attention import check_prefill, make_case, poisoned
from pagesim.kernels.bench.decode import sdpa
from pagesim.kernels.bench.rows import Point
from pagesim.kernels.bench.session import Case, Session
from pagesim.kernels.timing import Call


def prepare(point: Point, session: Session) -> Case:
    """Return a prefill op, made ready."""
    batch, query = point["batch"], point["query"]
    if point.op == "sdpa-prefill":
        return sdpa(point, session, rows=query)
    given = inputs.paged(point, session, batch * query)
    starts = torch.arange(0, batch * query + 1, query, dtype=torch.int32, device=session.device)
    window = point.parameters.get("window")
    outs = torch.empty_like(given.queries)

    def call(q: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> Call:
        return lambda: paged_attention(
            q, given.cache, table, given.lengths, starts, max_query_len=query, window=window, out=out
        )

    calls = [call(*each) for each in zip(given.queries, given.tables, outs, strict=True)]
    return make_case(point, calls, query, check_prefill(point, given, poisoned(calls, outs)))

"""Attention: paged decode and prefill, in one pass (v1) or splits (v2), contiguous, gathered, by peers."""

from __future__ import annotations

from math import sqrt
from typing import Any

import torch

from pagesim.kernels import gather_sequences, paged_attention
from pagesim.kernels.bench import inputs, peers
from pagesim.kernels.bench.cases import check, make_case, poisoned
from pagesim.kernels.bench.rows import Point, queries_of
from pagesim.kernels.bench.session import Case, Session
from pagesim.kernels.timing import Call

V2_TOKENS = 512
"""Tokens per split in vLLM's v2 kernel (2023)."""


def prepare(point: Point, session: Session) -> Case:
    """Prepare an attention op; the queries are the last tokens of their contexts."""
    if point.op in peers.PEERS:
        peer = peers.PEERS[point.op]
        peers.require(peer, point)
        given = inputs.paged(point, session, point["batch"])
        calls = peer.make(given, 1 / sqrt(point["head_size"]), point)
        return make_case(point, calls, check(point, given, poisoned(calls, None)))
    if point.op in ("sdpa-decode", "sdpa-prefill"):
        return _sdpa(point, session)
    return _ours(point, session)


def _ours(point: Point, session: Session) -> Case:
    """Prepare our kernel on inputs; each batch is gathered first if the op says so."""
    queries, longest = queries_of(point), point["context"]
    contiguous = point.op == "contiguous-decode"
    given = inputs.paged(point, session, point["batch"] * queries, contiguous=contiguous)
    splits = {"paged-decode-v1": 1, "paged-decode-v2": -(-longest // V2_TOKENS)}
    options: dict[str, Any] = {
        "max_query_len": queries,
        "max_context": longest,
        "window": point.parameters.get("window"),
        "num_splits": splits.get(point.op, point.parameters.get("splits")),
    }
    starts = None
    if queries > 1:
        rows = len(given.lengths) * queries
        starts = torch.arange(0, rows + 1, queries, dtype=torch.int32, device=given.lengths.device)
    outs = torch.empty_like(given.queries)

    def attend(q: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        cache = given.cache
        if point.op == "gather-decode":
            cache, table = gather_sequences(cache, table, given.lengths, max_context=longest, check=False)
        return paged_attention(q, cache, table, given.lengths, starts, out=out, **options)

    calls = given.calls(attend, outs)
    return make_case(point, calls, check(point, given, poisoned(calls, outs)))


def _sdpa(point: Point, session: Session) -> Case:
    """Prepare ``scaled_dot_product_attention`` over contiguous heads, causal for prompts."""
    prompt, rows = Point(point.bench, point.op, {**point.parameters, "layout": "HND"}), queries_of(point)
    given = inputs.paged(prompt, session, point["batch"] * rows, contiguous=True)
    shared = point["q_heads"] != point["kv_heads"]
    context = point["context"]

    def call(q: torch.Tensor, table: torch.Tensor) -> Call:
        heads_first = q.view(point["batch"], rows, *q.shape[1:]).transpose(1, 2)
        if rows == 1:
            heads_first = heads_first.contiguous()
        own = table[:, 0].long()
        keys, values = (
            each[own[0] : own[-1] + 1, :, :context]
            for each in (given.cache.key_cache, given.cache.value_cache)
        )
        return lambda: torch.nn.functional.scaled_dot_product_attention(
            heads_first, keys, values, is_causal=rows > 1, enable_gqa=shared
        )

    calls = [call(*each) for each in zip(given.queries, given.tables, strict=True)]

    def as_ours() -> torch.Tensor:
        output: torch.Tensor = calls[0]()
        return output.transpose(1, 2).reshape(-1, *given.queries.shape[2:])

    return make_case(point, calls, check(point, given, as_ours))

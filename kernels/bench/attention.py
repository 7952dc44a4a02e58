"""The attention ops of the bench: ours, torch's own, and the peers'."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any

import torch

from pagesim.kernels import api
from pagesim.kernels.bench import decode_cases, inputs, peers
from pagesim.kernels.bench.dtypes import DTYPES, TOLERANCE, query_dtype, vector_bytes
from pagesim.kernels.bench.inputs import Contiguous, Paged
from pagesim.kernels.bench.rows import Point, context_lens, read_tokens, visible_pairs
from pagesim.kernels.bench.session import Case, Session
from pagesim.kernels.layouts import HND, find_layout
from pagesim.kernels.planner import DecodePlan
from pagesim.kernels.reference import attend
from pagesim.kernels.timing import Call
from pagesim.kernels.variant import Variant


def prepare(point: Point, session: Session) -> Case:
    """Return an attention op, made ready."""
    builders: dict[str, Callable[[Point, Session], Case]] = {
        "paged-decode": _paged_decode,
        "contiguous-decode": _contiguous_decode,
        "gather-decode": _gather_decode,
        "sdpa-decode": _sdpa,
        "paged-prefill": _paged_prefill,
        "sdpa-prefill": _sdpa,
        "shared-decode": decode_cases.shared_decode,
        "cascade-decode": decode_cases.cascade_decode,
        "mla-decode": decode_cases.mla_decode,
    }
    if point.op in peers.PEERS:
        return _peer_decode(point, session)
    return builders[point.op](point, session)


def _paged_decode(point: Point, session: Session) -> Case:
    given = inputs.paged(point, session, point["batch"] * _queries(point))
    queries, variant = _by_sequence(point, given.queries), _variant(point)
    plan = _plan(point, queries[0], given.cache)
    outs = torch.empty_like(queries)

    def call(q: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> Call:
        return lambda: api.decode_attention(
            q, given.cache, table, given.lengths, plan=plan, out=out, variant=variant
        )

    calls = [call(*each) for each in zip(queries, given.tables, outs, strict=True)]
    return _decode_case(point, given, calls, outs, plan)


def _contiguous_decode(point: Point, session: Session) -> Case:
    rows = point["batch"] * _queries(point)
    given = inputs.contiguous(point, session, rows, find_layout(point["layout"]))
    queries, variant = _by_sequence(point, given.queries), _variant(point)
    plan = _plan(point, queries[0], given.caches[0])
    outs = torch.empty_like(queries)

    def call(q: torch.Tensor, cache: api.Cache, out: torch.Tensor) -> Call:
        return lambda: api.contiguous_decode_attention(
            q, cache, given.lengths, plan=plan, out=out, variant=variant
        )

    calls = [call(*each) for each in zip(queries, given.caches, outs, strict=True)]
    return _decode_case(point, given, calls, outs, plan)


def _gather_decode(point: Point, session: Session) -> Case:
    given = inputs.paged(point, session, point["batch"])
    shape = (point["batch"], point["context"], point["kv_heads"], point["head_size"])
    tensors = (session.empty(*shape, dtype=DTYPES[point["dtype"]]) for _ in range(2))
    scales = inputs.token_scales(point, session, point["batch"], point["kv_heads"], point["context"])
    room = api.Cache(*tensors, paged=False, **inputs.named(scales))
    plan = _plan(point, given.queries[0], room)
    outs = torch.empty_like(given.queries)

    def call(q: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> Call:
        return lambda: api.gather_decode_attention(
            q, given.cache, table, given.lengths, plan=plan, workspace=room, out=out
        )

    calls = [call(*each) for each in zip(given.queries, given.tables, outs, strict=True)]
    return _decode_case(point, given, calls, outs, plan)


def _peer_decode(point: Point, session: Session) -> Case:
    peer = peers.PEERS[point.op]
    peers.require(peer, point)
    given = inputs.paged(point, session, point["batch"])
    calls = peer.make(given, 1 / sqrt(point["head_size"]), point)
    return _decode_case(point, given, calls, None, None)


def _sdpa(point: Point, session: Session) -> Case:
    """``scaled_dot_product_attention`` over a contiguous batch in its own layout, causal for a prompt."""
    batch, prefill = point["batch"], point.op == "sdpa-prefill"
    rows = point["query"] if prefill else 1
    given = inputs.contiguous(point, session, batch * rows, HND)
    shared = point["q_heads"] != point["kv_heads"]

    def call(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> Call:
        heads_first = q.view(batch, rows, *q.shape[1:]).transpose(1, 2)
        if not prefill:
            heads_first = heads_first.contiguous()
        return lambda: torch.nn.functional.scaled_dot_product_attention(
            heads_first, keys, values, is_causal=prefill, enable_gqa=shared
        )

    calls = [call(*each) for each in zip(given.queries, given.keys, given.values, strict=True)]

    def as_ours() -> torch.Tensor:
        output: torch.Tensor = calls[0]()
        return output.transpose(1, 2).reshape(-1, *given.queries.shape[2:])

    check = _check_prefill(point, given, as_ours) if prefill else _check_decode(given, as_ours)
    return _case(point, calls, rows, check)


def _paged_prefill(point: Point, session: Session) -> Case:
    batch, query = point["batch"], point["query"]
    given = inputs.paged(point, session, batch * query)
    starts = torch.arange(0, batch * query + 1, query, dtype=torch.int32, device=session.device)
    variant = _variant(point)
    outs = torch.empty_like(given.queries)

    def call(q: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> Call:
        return lambda: api.prefill_attention(
            q, given.cache, table, given.lengths, starts, max_query_len=query, out=out, variant=variant
        )

    calls = [call(*each) for each in zip(given.queries, given.tables, outs, strict=True)]
    return _case(point, calls, query, _check_prefill(point, given, _poisoned(calls, outs)))


def _plan(point: Point, q: torch.Tensor, cache: api.Cache) -> DecodePlan:
    """Return the plan of a point: what it does not force is the planner's choice."""
    asked = point.parameters
    forced: dict[str, Any] = {name: asked.get(column) for name, column in _FORCED.items()}
    forced["window"] = asked.get("window")
    if capacity := asked.get("capacity"):
        return api.decode_plan(q, cache, [capacity] * point["batch"], capacity=True, **forced)
    listed = {None: None, "grid": False, "list": True}[asked.get("schedule")]
    return api.decode_plan(q, cache, context_lens(point), work_list=listed, **forced)


def _variant(point: Point) -> Variant:
    return Variant(window=point.parameters.get("window"))


def _queries(point: Point) -> int:
    """Return how many queries a sequence a decode op has."""
    return int(point.parameters.get("queries") or 1)


def _by_sequence(point: Point, queries: torch.Tensor) -> torch.Tensor:
    """Return ``[S, batch * queries, q_heads, D]`` as decode takes it: several queries have an axis."""
    many = _queries(point)
    return queries if many == 1 else queries.view(len(queries), point["batch"], many, *queries.shape[2:])


_FORCED = {"num_splits": "splits", "tile": "tile", "num_warps": "warps", "num_stages": "stages"}
"""Arguments of a plan and the columns that force them."""


def _decode_case(
    point: Point,
    given: Paged | Contiguous,
    calls: Sequence[Call],
    outs: torch.Tensor | None,
    plan: DecodePlan | None,
) -> Case:
    used = plan.num_splits if plan and given.queries.is_cuda else None
    check = _check_decode(given, _poisoned(calls, outs), _queries(point), point.parameters.get("window"))
    return _case(point, calls, _queries(point), check, used)


def _case(
    point: Point, calls: Sequence[Call], rows: int, check: Callable[[], float], splits: int | None = None
) -> Case:
    """Return a case of ``rows`` queries a sequence; the queries are the last tokens of their contexts."""
    batch = point["batch"]
    wide = point["q_heads"] * point["head_size"]
    tokens = read_tokens(point)
    moved = 2 * sum(tokens) * point["kv_heads"] * vector_bytes(point["dtype"], point["head_size"])
    moved += 2 * batch * rows * wide * query_dtype(point["dtype"]).itemsize
    if "block_size" in point.parameters:
        moved += 4 * sum(-(-length // point["block_size"]) for length in tokens)
    return Case(
        calls,
        bytes_moved=moved,
        flops=4 * visible_pairs(point) * wide,
        check=check,
        tolerance=TOLERANCE[point["dtype"]],
        columns={"splits_used": splits},
    )


def _poisoned(calls: Sequence[Call], outs: torch.Tensor | None) -> Callable[[], torch.Tensor]:
    def first() -> torch.Tensor:
        if outs is not None:
            outs.fill_(torch.nan)
        output: torch.Tensor = calls[0]()
        return output

    return first


def _check_decode(
    given: Paged | Contiguous,
    output: Callable[[], torch.Tensor],
    queries: int = 1,
    window: int | None = None,
) -> Callable[[], float]:
    """Compare the output of two sequences, a longest one among them, with attention in float64."""

    def check() -> float:
        got = output().reshape(-1, *given.queries.shape[2:])
        errors = []
        for row in {int(given.lengths.argmax()), len(given.lengths) // 2}:
            rows = slice(row * queries, (row + 1) * queries)
            errors.append(_error(got[rows], given.queries[0, rows], *given.tokens(row), window))
        return max(errors)

    return check


def _check_prefill(
    point: Point, given: Paged | Contiguous, output: Callable[[], torch.Tensor]
) -> Callable[[], float]:
    """Compare the first and the last tokens of one sequence: all of them would cost more than the bench."""
    query, context, row = point["query"], point["context"], point["batch"] // 2

    def check() -> float:
        got = output()
        keys, values = given.tokens(row)
        errors = []
        for first, last in ((0, min(4, query)), (max(0, query - 4), query)):
            rows = slice(row * query + first, row * query + last)
            seen = context - query + last
            window = point.parameters.get("window")
            errors.append(_error(got[rows], given.queries[0, rows], keys[:seen], values[:seen], window))
        return max(errors)

    return check


def _error(
    got: torch.Tensor, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int | None
) -> float:
    exact = attend(q.double(), keys.double(), values.double(), 1 / sqrt(q.shape[-1]), window=window)
    return float((got.double() - exact).abs().max() / exact.abs().max())

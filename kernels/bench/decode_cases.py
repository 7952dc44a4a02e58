"""Decode over shared prefixes and over latents (MLA), made ready to be timed."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import torch

from pagesim.kernels import api
from pagesim.kernels.bench import inputs
from pagesim.kernels.bench.decode_grids import LATENT_DIM
from pagesim.kernels.bench.dtypes import DTYPES, TOLERANCE
from pagesim.kernels.bench.inputs import Paged
from pagesim.kernels.bench.rows import Point
from pagesim.kernels.bench.session import Case, Session
from pagesim.kernels.reference import attend
from pagesim.kernels.timing import Call, rotations


def shared_decode(point: Point, session: Session) -> Case:
    """Return plain decode over tables that begin with the same blocks."""
    given = _sharing(point, session)
    plan = api.decode_plan(given.queries[0], given.cache, [point["context"]] * point["batch"])
    outs = torch.empty_like(given.queries)

    def call(q: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> Call:
        return lambda: api.decode_attention(q, given.cache, table, given.lengths, plan=plan, out=out)

    calls = [call(*each) for each in zip(given.queries, given.tables, outs, strict=True)]
    return _shared_case(point, given, calls, outs)


def cascade_decode(point: Point, session: Session) -> Case:
    """Return decode that reads them once; who shares what is found once for all layers, and not timed."""
    given = _sharing(point, session)
    group = (range(point["batch"]), point["shared"] // point["block_size"])
    batches = [api.SharedPrefixes(given.cache, table, given.lengths, [group]) for table in given.tables]
    plans = api.cascade_plan(given.queries[0], given.cache, batches[0])
    outs = torch.empty_like(given.queries)

    def call(q: torch.Tensor, prefixes: api.SharedPrefixes, out: torch.Tensor) -> Call:
        return lambda: api.cascade_decode_attention(q, given.cache, prefixes, plans=plans, out=out)

    calls = [call(*each) for each in zip(given.queries, batches, outs, strict=True)]
    return _shared_case(point, given, calls, outs)


def mla_decode(point: Point, session: Session) -> Case:
    """Return decode over latents."""
    batch, context, block_size = point["batch"], point["context"], point["block_size"]
    width, dtype = point["head_size"], DTYPES[point["dtype"]]
    sets = rotations(batch * context * width * dtype.itemsize, session.device)
    blocks = -(-context // block_size)
    cache = api.LatentCache(session.random(sets * batch * blocks, block_size, width, dtype=dtype))
    order = torch.randperm(sets * batch * blocks, generator=session.generator(point), dtype=torch.int32)
    tables = order.view(sets, batch, blocks).to(session.device)
    queries = session.random(sets, batch, point["q_heads"], width, dtype=dtype)
    lengths = torch.full((batch,), context, dtype=torch.int32, device=session.device)
    outs = torch.empty_like(queries[..., :LATENT_DIM], memory_format=torch.contiguous_format)
    plan = api.mla_plan(queries[0], cache, [context] * batch)
    scale = 1 / sqrt(width)

    def call(q: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> Call:
        return lambda: api.mla_decode_attention(q, cache, table, lengths, scale=scale, plan=plan, out=out)

    calls = [call(*each) for each in zip(queries, tables, outs, strict=True)]
    row = batch // 2

    def check() -> float:
        outs.fill_(torch.nan)
        calls[0]()
        keys = cache.cache[tables[0, row].long()].flatten(0, 1)[:context, None].double()
        exact = attend(queries[0, row : row + 1].double(), keys, keys, scale)[..., :LATENT_DIM]
        return _error(outs[0, row : row + 1], exact)

    moved = batch * (context * width + point["q_heads"] * (width + LATENT_DIM)) * dtype.itemsize
    return Case(
        calls,
        bytes_moved=moved + 4 * batch * blocks,
        flops=2 * batch * context * point["q_heads"] * (width + LATENT_DIM),
        check=check,
        tolerance=TOLERANCE[point["dtype"]],
        columns={"splits_used": plan.num_splits if queries.is_cuda else None},
    )


def _sharing(point: Point, session: Session) -> Paged:
    """Return paged inputs whose sequences all begin with the blocks of the first."""
    given = inputs.paged(point, session, point["batch"])
    blocks = point["shared"] // point["block_size"]
    tables = given.tables.clone()
    tables[:, :, :blocks] = tables[:, :1, :blocks].clone()
    return replace(given, tables=tables)


def _shared_case(point: Point, given: Paged, calls: list[Call], outs: torch.Tensor) -> Case:
    """Return a case of either op: the fewest bytes are those of shared tokens once."""
    batch, context = point["batch"], point["context"]
    wide = point["q_heads"] * point["head_size"]
    fewest = batch * context - (batch - 1) * point["shared"]
    row = batch // 2

    def check() -> float:
        outs.fill_(torch.nan)
        calls[0]()
        q, (keys, values) = given.queries[0, row : row + 1], given.tokens(row)
        exact = attend(q.double(), keys.double(), values.double(), 1 / sqrt(point["head_size"]))
        return _error(outs[0, row : row + 1], exact)

    moved = inputs.kv_bytes(point) * fewest // (batch * context) + 2 * batch * wide * outs.element_size()
    return Case(
        calls,
        bytes_moved=moved + 4 * batch * -(-context // point["block_size"]),
        flops=4 * batch * context * wide,
        check=check,
        tolerance=TOLERANCE[point["dtype"]],
    )


def _error(got: torch.Tensor, exact: torch.Tensor) -> float:
    return float((got.double() - exact).abs().max() / exact.abs().max())

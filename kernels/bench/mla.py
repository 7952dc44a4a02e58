"""Decode over latents (MLA): 512 or 256 latents and 64 other numbers per token (DeepSeek, Kimi K2, GLM)."""

from __future__ import annotations

from math import sqrt

import torch

from pagesim.kernels import LatentCache, mla_decode_attention
from pagesim.kernels.bench.cases import error_of, poisoned
from pagesim.kernels.bench.grid import USUAL
from pagesim.kernels.bench.inputs import DTYPES, TOLERANCE
from pagesim.kernels.bench.rows import Point
from pagesim.kernels.bench.session import Case, Session
from pagesim.kernels.timing import Call, rotations

ROPE_DIM = 64


def latent_dim(point: Point) -> int:
    """Return the number of latents per token."""
    return int(point.parameters.get("latent", USUAL["latent"]))


def prepare(point: Point, session: Session) -> Case:
    """Prepare decode over latents."""
    batch, context, block_size = point["batch"], point["context"], point["block_size"]
    q_heads, dtype = point["q_heads"], DTYPES[point["dtype"]]
    latent = latent_dim(point)
    width = latent + ROPE_DIM
    sets = rotations(batch * context * width * dtype.itemsize, session.device)
    blocks = -(-context // block_size)
    made = session.random(sets * batch * blocks, block_size, width, dtype=dtype)
    cache = LatentCache(made, latent_dim=latent)
    order = torch.randperm(sets * batch * blocks, generator=session.generator(point), dtype=torch.int32)
    tables = order.view(sets, batch, blocks).to(session.device)
    queries = session.random(sets, batch, q_heads, width, dtype=dtype)
    lengths = torch.full((batch,), context, dtype=torch.int32, device=session.device)
    outs = torch.empty_like(queries[..., :latent], memory_format=torch.contiguous_format)
    scale, row = 1 / sqrt(width), batch // 2

    def call(q: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> Call:
        return lambda: mla_decode_attention(
            q, cache, table, lengths, scale=scale, max_context=context, out=out
        )

    calls = [call(*each) for each in zip(queries, tables, outs, strict=True)]

    def check() -> float:
        got = poisoned(calls, outs)()
        keys = cache.cache[tables[0, row].long()].flatten(0, 1)[:context, None]
        return error_of(got[row : row + 1], queries[0, row : row + 1], keys, keys[..., :latent])

    moved = batch * (context * width + q_heads * (width + latent)) * dtype.itemsize
    return Case(
        calls,
        bytes_moved=moved + 4 * batch * blocks,
        flops=2 * batch * context * q_heads * (width + latent),
        check=check,
        tolerance=TOLERANCE[point["dtype"]],
    )

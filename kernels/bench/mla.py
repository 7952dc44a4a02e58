"""Decode over latents (MLA): 512 + 64 numbers a token, as DeepSeek-V2, V3 and Kimi K2 have them."""

from __future__ import annotations

from math import sqrt

import torch

from pagesim.kernels import LatentCache, mla_decode_attention
from pagesim.kernels.bench.inputs import DTYPES, TOLERANCE
from pagesim.kernels.bench.rows import Point
from pagesim.kernels.bench.session import Case, Session
from pagesim.kernels.reference import attend
from pagesim.kernels.timing import Call, rotations

LATENT_DIM, ROPE_DIM = 512, 64
WIDTH = LATENT_DIM + ROPE_DIM


def prepare(point: Point, session: Session) -> Case:
    """Return decode over latents, made ready."""
    batch, context, block_size = point["batch"], point["context"], point["block_size"]
    q_heads, dtype = point["q_heads"], DTYPES[point["dtype"]]
    sets = rotations(batch * context * WIDTH * dtype.itemsize, session.device)
    blocks = -(-context // block_size)
    cache = LatentCache(session.random(sets * batch * blocks, block_size, WIDTH, dtype=dtype))
    order = torch.randperm(sets * batch * blocks, generator=session.generator(point), dtype=torch.int32)
    tables = order.view(sets, batch, blocks).to(session.device)
    queries = session.random(sets, batch, q_heads, WIDTH, dtype=dtype)
    lengths = torch.full((batch,), context, dtype=torch.int32, device=session.device)
    outs = torch.empty_like(queries[..., :LATENT_DIM], memory_format=torch.contiguous_format)
    scale, row = 1 / sqrt(WIDTH), batch // 2

    def call(q: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> Call:
        return lambda: mla_decode_attention(
            q, cache, table, lengths, scale=scale, max_context=context, out=out
        )

    calls = [call(*each) for each in zip(queries, tables, outs, strict=True)]

    def check() -> float:
        outs.fill_(torch.nan)
        calls[0]()
        keys = cache.cache[tables[0, row].long()].flatten(0, 1)[:context, None].double()
        exact = attend(queries[0, row : row + 1].double(), keys, keys[..., :LATENT_DIM], scale)
        return float((outs[0, row : row + 1].double() - exact).abs().max() / exact.abs().max())

    moved = batch * (context * WIDTH + q_heads * (WIDTH + LATENT_DIM)) * dtype.itemsize
    return Case(
        calls,
        bytes_moved=moved + 4 * batch * blocks,
        flops=2 * batch * context * q_heads * (WIDTH + LATENT_DIM),
        check=check,
        tolerance=TOLERANCE[point["dtype"]],
    )

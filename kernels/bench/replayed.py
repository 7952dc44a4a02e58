"""Attention over the block tables of replays: decode, prefill and mixed batches, as in an engine."""

from __future__ import annotations

import torch

from pagesim.kernels import paged_attention
from pagesim.kernels.bench.cases import error_of, poisoned
from pagesim.kernels.bench.inputs import DTYPES, TOLERANCE
from pagesim.kernels.bench.rows import Point
from pagesim.kernels.bench.session import Case, Session
from pagesim.kernels.cache import Cache


def prepare(point: Point, session: Session) -> Case:
    """Prepare a batch of a replay."""
    from safetensors.torch import load_file

    stored = load_file(point["file"])
    lengths, queries = stored["seq_lens"], stored["query_lens"]
    table = stored["block_tables"]
    if point.op == "replayed-in-order":
        table = in_order(table)
    elif session.device.type == "cpu":  # blocks outside the batch would only waste memory
        numbers: torch.Tensor = torch.unique(table, return_inverse=True)[1]
        table = numbers.to(torch.int32) - int(table.min() < 0)
    size, heads, dim = point["block_size"], point["kv_heads"], point["head_size"]
    dtype, device = DTYPES[point["dtype"]], session.device
    shape = (int(table.max()) + 1, size, heads, dim)
    cache = Cache(session.random(*shape, dtype=dtype), session.random(*shape, dtype=dtype))
    starts = torch.zeros(len(queries) + 1, dtype=torch.int32)
    starts[1:] = queries.cumsum(0)
    q = session.random(int(starts[-1]), point["q_heads"], dim, dtype=dtype)
    out = torch.empty_like(q)
    tables, context_lens, query_starts = (each.to(device) for each in (table.clamp_min(0), lengths, starts))

    def call() -> torch.Tensor:
        return paged_attention(
            q,
            cache,
            tables,
            context_lens,
            query_starts,
            max_query_len=int(queries.max()),
            max_context=int(lengths.max()),
            out=out,
        )

    output, row = poisoned([call], out), int(lengths.argmax())

    def check() -> float:
        length = int(lengths[row])
        own = tables[row, : -(-length // size)].long()
        keys, values = (each[own].flatten(0, 1)[:length] for each in (cache.keys, cache.values))
        mine = slice(int(starts[row]), int(starts[row + 1]))
        return error_of(output()[mine], q[mine], keys, values)

    pairs = int((queries.long() * (2 * lengths.long() - queries + 1)).sum()) // 2
    read = 2 * distinct_tokens(table, lengths, size) * heads * dim * dtype.itemsize
    return Case(
        [call],
        bytes_moved=read + 2 * q.nbytes,
        flops=4 * pairs * point["q_heads"] * dim,
        check=check,
        tolerance=TOLERANCE[point["dtype"]],
    )


def in_order(table: torch.Tensor) -> torch.Tensor:
    """Return a block table with blocks renumbered in the order of their first occurrence.

    Args:
        table: int32 ``[batch, max_blocks]``; -1 stands for no block, and is kept.
    """
    places: dict[int, int] = {-1: -1}
    numbers = [[places.setdefault(block, len(places) - 1) for block in row] for row in table.tolist()]
    return torch.tensor(numbers, dtype=torch.int32)


def distinct_tokens(table: torch.Tensor, lengths: torch.Tensor, block_size: int) -> int:
    """Return the number of tokens that a batch reads, counting blocks shared by sequences once.

    Args:
        table: int32 ``[batch, max_blocks]``.
        lengths: int32 ``[batch]``, tokens.
        block_size: tokens per block.
    """
    filled: dict[int, int] = {}
    for row, length in zip(table.tolist(), lengths.tolist(), strict=True):
        for place, block in enumerate(row[: -(-length // block_size)]):
            filled[block] = max(filled.get(block, 0), min(block_size, length - place * block_size))
    return sum(filled.values())

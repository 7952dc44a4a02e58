"""CUDA graphs of decode iterations: one for each of some batch sizes, started in one launch."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pagesim.kernels import decode_plan
from pagesim.live.attention import CachedAttention
from pagesim.live.batch import NOWHERE, Batch, table_width
from pagesim.live.model import Model
from pagesim.live.pools import KvPools

if TYPE_CHECKING:
    from collections.abc import Sequence

BATCHES = (1, 2, 4, *range(8, 257, 8))
"""Batch sizes that have a graph, as vLLM chooses them; a batch runs in the next larger one, its last rows
idle."""


class DecodeGraphs:
    """Captured once and replayed over the same tensors, into which every batch is copied.

    A graph does not know how long contexts will be: the decode kernel is planned for the longest there can
    be, as in vLLM, and programs that find nothing to read end at once.

    Args:
        model: what is captured.
        pools: the cache that it reads and writes.
        longest: tokens of the longest sequence.
        most: sequences at most that decode at once; more run without a graph.
    """

    def __init__(self, model: Model, pools: KvPools, *, longest: int, most: int) -> None:
        self.sizes: Sequence[int] = BATCHES[: bisect_left(BATCHES, most) + 1]
        rows, device = self.sizes[-1], pools.device
        width = table_width(-(-longest // pools.block_size))
        self._inputs = Batch(
            tokens=torch.zeros(rows, dtype=torch.int64, device=device),
            positions=torch.zeros(rows, dtype=torch.int64, device=device),
            slots=torch.full((rows,), NOWHERE, dtype=torch.int64, device=device),
            last=torch.arange(rows, device=device),
            tables=torch.zeros((rows, width), dtype=torch.int32, device=device),
            decode_lengths=torch.zeros(rows, dtype=torch.int32, device=device),
            prompt_lengths=torch.zeros(0, dtype=torch.int32, device=device),
            starts=torch.zeros(1, dtype=torch.int32, device=device),
            contexts=[longest] * rows,
            longest_query=0,
        )
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        shared = None
        for size in reversed(self.sizes):  # the largest first: the others find their memory in its
            self._run(model, pools, size)
            torch.cuda.synchronize(device)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=shared):
                logits = self._run(model, pools, size)
            shared = graph.pool()
            self._graphs[size] = graph, logits

    def replay(self, batch: Batch) -> Tensor | None:
        """Run a batch that only decodes; return its logits ``[D, vocab]``, or None if it is too large."""
        count = batch.decodes
        place = bisect_left(self.sizes, count)
        if place == len(self.sizes):
            return None
        size = self.sizes[place]
        inputs, width = self._inputs, batch.tables.shape[1]
        inputs.tokens[:count].copy_(batch.tokens)
        inputs.positions[:count].copy_(batch.positions)
        inputs.slots[:count].copy_(batch.slots)
        inputs.tables[:count, :width].copy_(batch.tables)
        inputs.decode_lengths[:count].copy_(batch.decode_lengths)
        inputs.slots[count:size].fill_(NOWHERE)
        inputs.decode_lengths[count:size].zero_()
        graph, logits = self._graphs[size]
        graph.replay()
        return logits[:count]

    def _run(self, model: Model, pools: KvPools, size: int) -> Tensor:
        full = self._inputs
        batch = replace(
            full,
            tokens=full.tokens[:size],
            positions=full.positions[:size],
            slots=full.slots[:size],
            last=full.last[:size],
            tables=full.tables[:size],
            decode_lengths=full.decode_lengths[:size],
            contexts=full.contexts[:size],
        )
        spec = model.spec
        queries = torch.empty((size, spec.heads, spec.head_dim), dtype=model.dtype, device=model.device)
        plan = decode_plan(queries, pools.caches[0][0], batch.contexts)
        attend = CachedAttention(pools, batch, "paged", plan)
        return model.forward(batch.tokens, batch.positions, batch.last, attend)

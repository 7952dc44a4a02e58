"""CUDA graphs of decode iterations: one for each of some batch sizes, started in one launch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pagesim.device.live.batch import NOWHERE, DeviceBatch, table_width
from pagesim.device.live.cached_attention import CachedAttention
from pagesim.device.live.model import Model
from pagesim.device.live.pools import KvPools

BATCHES = (1, 2, 4, *range(8, 257, 8))
"""Batch sizes that have a graph, as vLLM chooses them; a batch runs in the next larger one, its last rows
idle."""


class DecodeGraphs:
    """CUDA graphs of decode steps, each captured once; every batch is copied into the tensors of its graph.

    A graph does not know how long contexts will be: its decode kernel has as many splits as the longest there
    can be needs, and cuts shorter ones into parts that are shorter. Beside a CPU nothing is
    captured, and the padded batch is computed like any other.

    Args:
        model: what is captured.
        pools: the cache that it reads and writes.
        longest: tokens of the longest sequence.
        most: sequences at most that decode at once; more run without a graph.
    """

    def __init__(self, model: Model, pools: KvPools, *, longest: int, most: int) -> None:
        self.model = model
        self.pools = pools
        self.sizes: Sequence[int] = BATCHES[: bisect_left(BATCHES, most) + 1]
        rows, device = self.sizes[-1], pools.device
        width = table_width(-(-longest // pools.block_size))
        self._inputs = DeviceBatch(
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
        self._logits = torch.empty((rows, model.spec.vocab), dtype=model.dtype, device=device)
        self._replays: dict[int, Callable[[], Any]] = {}
        pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        for size in reversed(self.sizes):  # the largest first: the others find their memory in its
            run = partial(self._run, size)
            self._replays[size] = run if pool is None else _captured(run, pool)

    def replay(self, batch: DeviceBatch) -> Tensor | None:
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
        self._replays[size]()
        return self._logits[:count]

    def _run(self, size: int) -> None:
        """Compute the first rows of the inputs, idle ones included."""
        model, every = self.model, self._inputs
        batch = replace(
            every,
            tokens=every.tokens[:size],
            positions=every.positions[:size],
            slots=every.slots[:size],
            last=every.last[:size],
            tables=every.tables[:size],
            decode_lengths=every.decode_lengths[:size],
            contexts=every.contexts[:size],
        )
        attend = CachedAttention(self.pools, batch, "paged")
        model.forward(batch.tokens, batch.positions, batch.last, attend, out=self._logits[:size])


def _captured(run: Callable[[], Any], pool: Any) -> Callable[[], Any]:
    """Return what replays a run that launches the same every time."""
    run()  # compiles and loads what a capture must not
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        run()
    replay: Callable[[], Any] = graph.replay
    return replay

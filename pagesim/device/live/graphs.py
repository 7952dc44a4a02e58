"""CUDA graphs of decode iterations, one per captured batch size."""

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
"""Batch sizes with a graph, as in vLLM; a batch runs in the next larger one, whose last rows are idle."""


class DecodeGraphs:
    """CUDA graphs of decode steps, each captured once; every batch is copied into its graph's tensors.

    The length of contexts is unknown at capture. The decode kernel therefore has the number of splits that
    the longest possible context needs, and cuts shorter contexts into shorter parts. On a CPU nothing is
    captured, and the padded batch is computed like any other.

    Args:
        model: model to capture.
        pools: cache that it reads and writes.
        longest: tokens of the longest sequence.
        most: most sequences that decode at once; larger batches run without a graph.
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
        for size in reversed(self.sizes):  # the largest first, so that the others reuse its memory
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
        """Compute the first ``size`` rows of the inputs, including idle ones."""
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
        attend = CachedAttention(self.pools, batch)
        model.forward(batch.tokens, batch.positions, batch.last, attend, out=self._logits[:size])


def _captured(run: Callable[[], Any], pool: Any) -> Callable[[], Any]:
    """Capture a run that always launches the same kernels, and return the function that replays it."""
    run()  # compiles and loads kernels, which a capture must not do
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        run()
    replay: Callable[[], Any] = graph.replay
    return replay

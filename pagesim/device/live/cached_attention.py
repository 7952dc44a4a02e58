"""Attention of one iteration over the paged cache."""

from __future__ import annotations

import torch
from torch import Tensor

from pagesim.device.live.batch import DeviceBatch
from pagesim.device.live.pools import KvPools
from pagesim.kernels import paged_attention, reshape_and_cache


class CachedAttention:
    """Writes a batch's keys and values into the cache and attends to it: an ``Attend`` of the model.

    The kernels' arguments are checked in layer 0 only, since those of the other layers are alike.

    Args:
        pools: the cache.
        batch: batch of this iteration.
        num_splits: splits of each context in the decode kernel; by default, it chooses by the longest.
    """

    def __init__(self, pools: KvPools, batch: DeviceBatch, num_splits: int | None = None) -> None:
        self.pools = pools
        self.batch = batch
        self._max_context = max(batch.contexts, default=0)
        self._num_splits = num_splits

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        batch = self.batch
        self.write(layer, keys, values)
        out = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
        decodes = batch.decodes
        if decodes:
            self.decode(layer, queries[:decodes], batch.tables[:decodes], batch.decode_lengths, out[:decodes])
        if batch.longest_query:
            self.prefill(layer, queries[decodes:], out[decodes:])
        return out

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Store the keys and values of all new tokens, ``[T, KV heads, head size]``."""
        reshape_and_cache(keys, values, self.pools.caches[layer], self.batch.slots, check=layer == 0)

    def prefill(self, layer: int, queries: Tensor, out: Tensor) -> None:
        """Compute attention of sequences with several queries, ``[T − D, heads, head size]``."""
        batch = self.batch
        paged_attention(
            queries,
            self.pools.caches[layer],
            batch.tables[batch.decodes :],
            batch.prompt_lengths,
            batch.starts,
            max_query_len=batch.longest_query,
            out=out,
            check=layer == 0,
        )

    def decode(self, layer: int, queries: Tensor, tables: Tensor, lengths: Tensor, out: Tensor) -> None:
        """Compute attention with one query per sequence, ``[D, heads, head size]``."""
        paged_attention(
            queries,
            self.pools.caches[layer],
            tables,
            lengths,
            max_context=self._max_context,
            num_splits=self._num_splits,
            out=out,
            check=layer == 0,
        )

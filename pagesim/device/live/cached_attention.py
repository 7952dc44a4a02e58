"""Attention of one iteration over the paged cache, by the paged kernel or by gathering contexts first."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from pagesim.device.live.batch import DeviceBatch
from pagesim.device.live.pools import KvPools
from pagesim.kernels import Cache, gather_sequences, paged_attention, reshape_and_cache
from pagesim.kernels.swap import LayerSwap

Kind = Literal["paged", "gather"]

KINDS: tuple[Kind, ...] = ("paged", "gather")
"""How decoding sequences read keys and values: through their block tables, or by first copying them into a
padded batch in every layer and step, as without a paged kernel. Prompts always use block tables."""


class CachedAttention:
    """Writes a batch's keys and values into the cache and attends to it: an ``Attend`` of the model.

    The kernels' arguments are checked in layer 0 only, since those of the other layers are alike.

    Args:
        pools: the cache.
        batch: batch of this iteration.
        kind: how decoding sequences read the cache.
        num_splits: splits of each context in the decode kernel; by default, it chooses by the longest.
        swap: blocks swapped while layers compute; a layer waits for its own before it writes.
    """

    def __init__(
        self,
        pools: KvPools,
        batch: DeviceBatch,
        kind: Kind,
        num_splits: int | None = None,
        swap: LayerSwap | None = None,
    ) -> None:
        self.pools = pools
        self.batch = batch
        self.kind = kind
        self._max_context = max(batch.contexts, default=0)
        self._num_splits = num_splits
        self._swap = swap
        self._gathered: tuple[Cache, Tensor] | None = None  # contexts copied by ``gather``

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        batch = self.batch
        if self._swap is not None:
            self._swap.join(layer)
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
        """Compute attention with one query per sequence, ``[D, heads, head size]``, by this ``kind``."""
        cache, check = self.pools.caches[layer], layer == 0
        if self.kind == "gather":  # repeated in every layer
            self._gathered = gather_sequences(
                cache, tables, lengths, max_context=self._max_context, out=self._gathered, check=check
            )
            cache, tables = self._gathered
        paged_attention(
            queries,
            cache,
            tables,
            lengths,
            max_context=self._max_context,
            num_splits=self._num_splits,
            out=out,
            check=check,
        )

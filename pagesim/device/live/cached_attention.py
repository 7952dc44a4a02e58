"""Attention of one iteration over the paged cache: by the paged kernel, or by gathering contexts first."""

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
"""How the keys and values of decoding sequences are read: through their block tables, or copied into a padded
batch first, in every layer of every step, as is done without a paged kernel. Prompts are paged under both."""


class CachedAttention:
    """Writes a batch's keys and values into the cache and attends to it: an ``Attend`` of the model.

    The kernels' arguments are checked in layer 0: those of the other layers are like them.

    Args:
        pools: the cache.
        batch: of this iteration.
        kind: how decoding sequences read.
        num_splits: into how many splits the kernel cuts contexts, instead of what it chooses by the longest.
        swap: blocks that come and leave while layers compute; a layer waits for its own before it writes.
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
        self._gathered: tuple[Cache, Tensor] | None = None  # contexts as ``gather`` copies them

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
        """Keep the keys and values of all new tokens, ``[T, KV heads, head size]``."""
        reshape_and_cache(keys, values, self.pools.caches[layer], self.batch.slots, check=layer == 0)

    def prefill(self, layer: int, queries: Tensor, out: Tensor) -> None:
        """Attend with all queries of the sequences that have several, ``[T − D, heads, head size]``."""
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
        """Attend with one query a sequence, ``[D, heads, head size]``, as this kind does."""
        cache, check = self.pools.caches[layer], layer == 0
        if self.kind == "gather":  # in every layer anew
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

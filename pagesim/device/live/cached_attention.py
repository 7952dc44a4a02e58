"""Attention of one iteration over the paged cache: by the paged kernel, or by gathering contexts first."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from pagesim.device.live.batch import DeviceBatch
from pagesim.device.live.pools import KvPools
from pagesim.kernels import (
    Cache,
    DecodePlan,
    decode_attention,
    decode_plan,
    gather_decode_attention,
    gather_sequences,
    prefill_attention,
    reshape_and_cache,
)
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
        plan: of the decode kernel; made when it is first needed unless given.
        swap: blocks that come and leave while layers compute; a layer waits for its own before it writes.
    """

    def __init__(
        self,
        pools: KvPools,
        batch: DeviceBatch,
        kind: Kind,
        plan: DecodePlan | None = None,
        swap: LayerSwap | None = None,
    ) -> None:
        self.pools = pools
        self.batch = batch
        self.kind = kind
        self._plan = plan
        self._swap = swap
        self._padded: Cache | None = None  # contexts as ``gather`` copies them, in every layer anew

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
        prefill_attention(
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
        cache = self.pools.caches[layer]
        if self._plan is None and queries.is_cuda:
            self._plan = decode_plan(queries, cache, self.batch.contexts)
        options: dict[str, Any] = {"plan": self._plan, "out": out, "check": layer == 0}
        if self.kind == "paged":
            decode_attention(queries, cache, tables, lengths, **options)
            return
        if self._padded is None:
            longest = max(self.batch.contexts)
            self._padded = gather_sequences(cache, tables, lengths, max_context=longest)
        gather_decode_attention(queries, cache, tables, lengths, workspace=self._padded, **options)

"""Attention of one iteration over the paged cache: by the paged kernel, or by gathering contexts first."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from pagesim.device.live.batch import DeviceBatch
from pagesim.device.live.pools import KvPools
from pagesim.kernels import (
    DecodePlan,
    decode_attention,
    decode_plan,
    gather_decode_attention,
    prefill_attention,
    reshape_and_cache,
)

Kind = Literal["paged", "gather"]

KINDS: tuple[Kind, ...] = ("paged", "gather")
"""How the keys and values of decoding sequences are read: through their block tables, or copied into a padded
batch first, in every layer of every step, as is done without a paged kernel. Prompts are paged under both."""


class CachedAttention:
    """Writes a batch's keys and values into the cache and attends to it: an ``Attend`` of the model.

    Args:
        pools: the cache.
        batch: of this iteration.
        kind: how decoding sequences read.
        plan: of the decode kernel; made when it is first needed unless given.
    """

    def __init__(
        self, pools: KvPools, batch: DeviceBatch, kind: Kind, plan: DecodePlan | None = None
    ) -> None:
        self.pools = pools
        self.batch = batch
        self.kind = kind
        self._plan = plan

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
        """Keep the keys and values of all new tokens, ``[T, KV heads, head size]``."""
        reshape_and_cache(keys, values, *self.pools.caches[layer], self.batch.slots)

    def prefill(self, layer: int, queries: Tensor, out: Tensor) -> None:
        """Attend with all queries of the sequences that have several, ``[T − D, heads, head size]``."""
        key_cache, value_cache = self.pools.caches[layer]
        batch = self.batch
        prefill_attention(
            queries,
            key_cache,
            value_cache,
            batch.tables[batch.decodes :],
            batch.prompt_lengths,
            batch.starts,
            max_query_len=batch.longest_query,
            out=out,
        )

    def decode(self, layer: int, queries: Tensor, tables: Tensor, lengths: Tensor, out: Tensor) -> None:
        """Attend with one query a sequence, ``[D, heads, head size]``, as this kind does."""
        key_cache, value_cache = self.pools.caches[layer]
        contexts = self.batch.contexts
        if self._plan is None and queries.is_cuda:
            self._plan = decode_plan(queries, key_cache, contexts, paged=self.kind == "paged")
        if self.kind == "paged":
            decode_attention(queries, key_cache, value_cache, tables, lengths, plan=self._plan, out=out)
        else:
            gather_decode_attention(
                queries,
                key_cache,
                value_cache,
                tables,
                lengths,
                max_context=max(contexts),
                plan=self._plan,
                out=out,
            )

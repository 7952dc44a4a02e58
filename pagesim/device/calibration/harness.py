"""Harness: a model, a cache and random batches on a device, and each part of an iteration as a callable.

The parts are those of a live run: the same model, the same kernels over the same tables, layer after layer,
each part by itself. As there, the model and what it calls run in inference mode, in which small ops
take a fifth less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pagesim.device.calibration.points import Point
from pagesim.device.live.batch import DeviceBatch, Staging, columns_alike, table_width
from pagesim.device.live.cached_attention import CachedAttention
from pagesim.device.live.model import Model
from pagesim.device.live.pools import KvPools
from pagesim.kernels.timing import Call


class NoRoom(MemoryError):
    """A point needs more blocks than there are."""


class Work(NamedTuple):
    """A point made ready.

    Attributes:
        call: does it once, all layers.
        bytes_read: the fewest that it reads, so that its clock knows whether a cache would hold them.
        by_wall: the host takes part in it, so the host's clock is used.
    """

    call: Call
    bytes_read: int
    by_wall: bool = False


class Harness:
    """A model and a cache of blocks of one size.

    Args:
        model: with its weights on the device.
        pools: the cache, which is filled with random contents, and its swap space.
        cuda_graphs: whether decode attention is cut into splits as in a graph, for contexts of any length.
        seed: of the block tables.
    """

    def __init__(self, model: Model, pools: KvPools, *, cuda_graphs: bool, seed: int) -> None:
        self.model = model
        self.pools = pools
        self.device = model.device
        self.longest = model.spec.max_model_len
        self.cuda_graphs = cuda_graphs
        for cache in pools.caches:  # zeros would be faster
            cache.key_cache.normal_()
            cache.value_cache.normal_()
        self._random = np.random.default_rng(seed)

    def prepare(self, point: Point) -> Work:
        """Return a point of a term, made ready.

        Raises:
            NoRoom: the cache or the swap space has too few blocks.
        """
        sized = {"linear": self._linear, "head": self._head, "write": self._write}
        if point.term in sized:
            return sized[point.term](point.size)
        if point.term in ("decode", "prefill"):
            return self._attention(point)
        return self._move(point.term, point.size)

    def batch(self, new: Sequence[int], context: int, *, kept: bool = False) -> DeviceBatch:
        """Return a batch of sequences with so many new tokens each, in blocks that no other has.

        Args:
            new: new tokens of each sequence, those with one first.
            context: tokens of each, new ones included.
            kept: whether the new tokens' keys and values are written where they belong.

        Raises:
            NoRoom: the cache has too few blocks.
        """
        size = self.pools.block_size
        blocks = -(-context // size)
        needed = blocks * len(new)
        if needed > self.pools.num_blocks:
            raise NoRoom(f"{needed} blocks are needed and the cache has {self.pools.num_blocks}")
        tables = np.zeros((len(new), table_width(blocks)), np.int32)
        own = self._random.permutation(self.pools.num_blocks)[:needed].reshape(len(new), blocks)
        tables[:, :blocks] = own
        columns = columns_alike(new, context, tables)
        columns = columns._replace(tokens=self._random.integers(0, self.model.spec.vocab, sum(new)))
        if kept:
            rows, positions = np.repeat(np.arange(len(new)), new), columns.positions
            slots = tables[rows, positions // size].astype(np.int64) * size + positions % size
            columns = columns._replace(slots=slots)
        # A staging area of its own: what is put there stays.
        return Staging(self.device).put(columns)

    def _linear(self, tokens: int) -> Work:
        spec = self.model.spec
        ids = torch.randint(spec.vocab, (tokens,), device=self.device)
        positions = torch.arange(tokens, device=self.device) % self.longest
        read = self._filled(tokens, spec.heads)  # what attention would have read
        model = self.model
        return Work(
            lambda: model.hidden(ids, positions, lambda *_: read), model.parameters * model.dtype.itemsize
        )

    def _head(self, sequences: int) -> Work:
        model, spec = self.model, self.model.spec
        x = torch.empty((sequences, spec.hidden), dtype=model.dtype, device=self.device).normal_()
        last = torch.arange(sequences, device=self.device)
        return Work(lambda: model.logits(x, last).argmax(dim=-1), model.head.numel() * model.dtype.itemsize)

    def _write(self, tokens: int) -> Work:
        spec, size = self.model.spec, self.pools.block_size
        each = min(tokens, self.longest, self.pools.num_blocks * size)
        count = -(-tokens // each)
        whole = self.batch([each] * count, each, kept=True)
        slots = whole.slots[:tokens]
        attend = CachedAttention(self.pools, replace(whole, slots=slots), "paged")
        keys, values = self._filled(tokens, spec.kv_heads), self._filled(tokens, spec.kv_heads)
        return self._in_every_layer(lambda layer: attend.write(layer, keys, values), 2 * tokens)

    def _attention(self, point: Point) -> Work:
        """Return decode attention, or that of prompts, with as many new tokens each."""
        decodes = point.term == "decode"
        count = point.size if decodes else point.sequences
        batch = self.batch([point.size // count] * count, point.context)
        queries = self._filled(point.size, self.model.spec.heads)
        out = torch.empty_like(queries)
        # A graph does not know how long contexts will be.
        longest = self.longest if decodes and self.cuda_graphs else None
        attend = CachedAttention(self.pools, batch, "paged", max_context=longest)

        def once(layer: int) -> None:
            if decodes:
                attend.decode(layer, queries, batch.tables, batch.decode_lengths, out)
            else:
                attend.prefill(layer, queries, out)

        return self._in_every_layer(once, count * point.context)

    def _in_every_layer(self, once: Callable[[int], object], tokens_read: int) -> Work:
        """Return what is done once in each layer; it reads the keys and values of so many tokens."""
        spec = self.model.spec

        @torch.inference_mode()
        def call() -> None:
            for layer in range(spec.layers):
                once(layer)

        token_bytes = 2 * spec.layers * spec.kv_heads * spec.head_dim * self.model.dtype.itemsize
        return Work(call, tokens_read * token_bytes)

    def _move(self, term: str, count: int) -> Work:
        pools = self.pools
        device = self._random.permutation(pools.num_blocks)
        if term == "copy":
            if 2 * count > pools.num_blocks:
                raise NoRoom(f"{2 * count} blocks are needed and the cache has {pools.num_blocks}")
            pairs = list(zip(device[:count].tolist(), device[count : 2 * count].tolist(), strict=True))
            return Work(lambda: pools.copy(pairs), 0, by_wall=True)
        if count > min(pools.num_blocks, pools.host_blocks):
            raise NoRoom(
                f"{count} blocks are needed; the cache has {pools.num_blocks} and the swap space "
                f"{pools.host_blocks}"
            )
        # A free list that is fresh hands out neighbours on the host.
        ours, theirs = device[:count].tolist(), range(count)
        if term == "swap_out":
            out = list(zip(ours, theirs, strict=True))
            return Work(lambda: pools.swap_out(out), 0, by_wall=True)
        back = list(zip(theirs, ours, strict=True))
        return Work(lambda: pools.swap_in(back), 0, by_wall=True)

    def _filled(self, tokens: int, heads: int) -> Tensor:
        shape = (tokens, heads, self.model.spec.head_dim)
        return torch.empty(shape, dtype=self.model.dtype, device=self.device).normal_()

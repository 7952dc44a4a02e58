"""The cache writes, of keys and values and of latents, and a plain copy of bytes within the device."""

from __future__ import annotations

import torch

from pagesim.kernels import Cache, LatentCache, Sizes, mla_write, reshape_and_cache
from pagesim.kernels.bench.inputs import DTYPES, query_dtype
from pagesim.kernels.bench.mla import ROPE_DIM, latent_dim
from pagesim.kernels.bench.rows import Point
from pagesim.kernels.bench.session import Case, Session
from pagesim.kernels.timing import Call, rotations


def prepare(point: Point, session: Session) -> Case:
    """Return a plain copy or a cache write, made ready."""
    prepares = {"device-copy": _device_copy, "mla-write": _latent_write}
    return prepares.get(point.op, _cache_write)(point, session)


def _device_copy(point: Point, session: Session) -> Case:
    size = point["piece_bytes"]
    sets = rotations(size, session.device)
    source, target = (session.random(sets, size, dtype=torch.uint8) for _ in range(2))

    def call(to: torch.Tensor, of: torch.Tensor) -> Call:
        return lambda: to.copy_(of)

    calls = [call(*each) for each in zip(target, source, strict=True)]
    return Case(calls, bytes_moved=2 * size)


def _slots(point: Point, session: Session, sets: int, blocks: int) -> torch.Tensor:
    """Return slots ``[sets, tokens]``: neighbours in random blocks, as a prompt's tokens fill them."""
    tokens, block_size = point["tokens"], point["block_size"]
    order = torch.randperm(blocks, generator=session.generator(point))
    slots: torch.Tensor = (order[:, None] * block_size + torch.arange(block_size)).flatten()
    return slots[: sets * tokens].view(sets, tokens).to(session.device)


def _latent_write(point: Point, session: Session) -> Case:
    tokens, block_size, latent = point["tokens"], point["block_size"], latent_dim(point)
    dtype, width = DTYPES[point["dtype"]], latent + ROPE_DIM
    moved = 2 * tokens * width * dtype.itemsize + 8 * tokens
    sets = rotations(moved, session.device)
    blocks = -(-tokens // block_size) * sets + 1
    cache = LatentCache(session.random(blocks, block_size, width, dtype=dtype), latent_dim=latent)
    new = session.random(sets, tokens, width, dtype=dtype)
    slots = _slots(point, session, sets, blocks)

    def call(vectors: torch.Tensor, where: torch.Tensor) -> Call:
        first, rope = vectors[:, :latent].contiguous(), vectors[:, latent:].contiguous()
        return lambda: mla_write(first, rope, cache, where)

    calls = [call(*each) for each in zip(new, slots, strict=True)]

    def check() -> float:
        calls[0]()
        return float((cache.cache.flatten(0, 1)[slots[0]].float() - new[0].float()).abs().max())

    return Case(calls, bytes_moved=moved, check=check)


def _cache_write(point: Point, session: Session) -> Case:
    tokens, block_size, heads = point["tokens"], point["block_size"], point["kv_heads"]
    dtype, new_dtype = DTYPES[point["dtype"]], query_dtype(point["dtype"])
    vector = point["head_size"] * (dtype.itemsize + new_dtype.itemsize)
    moved = 2 * tokens * heads * vector + 8 * tokens
    sets = rotations(moved, session.device)
    blocks = -(-tokens // block_size) * sets + 1
    shape = Sizes(blocks, block_size, heads, point["head_size"]).shape(point["layout"])
    cache = Cache(*(session.random(*shape, dtype=dtype) for _ in range(2)), layout=point["layout"])
    new = [session.random(sets, tokens, heads, point["head_size"], dtype=new_dtype) for _ in range(2)]
    slots = _slots(point, session, sets, blocks)

    def call(key: torch.Tensor, value: torch.Tensor, where: torch.Tensor) -> Call:
        return lambda: reshape_and_cache(key, value, cache, where)

    calls = [call(*each) for each in zip(*new, slots, strict=True)]

    def check() -> float:
        calls[0]()
        block, slot = slots[0] // block_size, slots[0] % block_size
        pairs = zip((cache.keys, cache.values), new, strict=True)
        errors = [(stored[block, slot].float() - of[0].to(dtype).float()).abs().max() for stored, of in pairs]
        return float(max(errors))

    return Case(calls, bytes_moved=moved, check=check)

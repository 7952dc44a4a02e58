"""Cache writes of keys and values or of latents, and a plain copy of bytes within the device."""

from __future__ import annotations

import torch

from pagesim.kernels import Cache, LatentCache, Sizes, mla_write, reshape_and_cache
from pagesim.kernels.bench.inputs import DTYPES, query_dtype
from pagesim.kernels.bench.mla import ROPE_DIM, latent_dim
from pagesim.kernels.bench.rows import Point
from pagesim.kernels.bench.session import Case, Session
from pagesim.kernels.timing import Call, rotations


def prepare(point: Point, session: Session) -> Case:
    """Prepare a plain copy or a cache write."""
    return _device_copy(point, session) if point.op == "device-copy" else _cache_write(point, session)


def _device_copy(point: Point, session: Session) -> Case:
    size = point["piece_bytes"]
    sets = rotations(size, session.device)
    source, target = (session.random(sets, size, dtype=torch.uint8) for _ in range(2))

    def call(to: torch.Tensor, of: torch.Tensor) -> Call:
        return lambda: to.copy_(of)

    calls = [call(*each) for each in zip(target, source, strict=True)]
    return Case(calls, bytes_moved=2 * size)


def _cache_write(point: Point, session: Session) -> Case:
    """Prepare a write of keys and values, or of latents, which are one vector per token."""
    tokens, block_size, dtype = point["tokens"], point["block_size"], DTYPES[point["dtype"]]
    new_dtype, latent = query_dtype(point["dtype"]), latent_dim(point)
    is_latent = point.op == "mla-write"
    heads, width = (1, latent + ROPE_DIM) if is_latent else (point["kv_heads"], point["head_size"])
    vectors = tokens * heads * (1 if is_latent else 2)
    moved = vectors * width * (dtype.itemsize + new_dtype.itemsize) + 8 * tokens
    sets = rotations(moved, session.device)
    blocks = -(-tokens // block_size) * sets + 1
    # Whole blocks of consecutive slots in random positions, as a prompt's tokens fill them.
    order = torch.randperm(blocks, generator=session.generator(point))
    slots = (order[:, None] * block_size + torch.arange(block_size)).flatten()[: sets * tokens]
    slots = slots.view(sets, tokens).to(session.device)
    if is_latent:
        latents = LatentCache(session.random(blocks, block_size, width, dtype=dtype), latent_dim=latent)
        stored = [latents.cache[:, :, None]]
    else:
        shape = Sizes(blocks, block_size, heads, width).shape(point["layout"])
        cache = Cache(*(session.random(*shape, dtype=dtype) for _ in range(2)), layout=point["layout"])
        stored = [cache.keys, cache.values]
    new = [session.random(sets, tokens, heads, width, dtype=new_dtype) for _ in stored]

    def call(where: torch.Tensor, *vectors: torch.Tensor) -> Call:
        if not is_latent:
            return lambda: reshape_and_cache(vectors[0], vectors[1], cache, where)
        one = vectors[0][:, 0]
        first, rope = one[:, :latent].contiguous(), one[:, latent:].contiguous()
        return lambda: mla_write(first, rope, latents, where)

    calls = [call(*each) for each in zip(slots, *new, strict=True)]

    def check() -> float:
        calls[0]()
        block, slot = slots[0] // block_size, slots[0] % block_size
        pairs = zip(stored, new, strict=True)
        errors = [(there[block, slot].float() - of[0].to(dtype).float()).abs().max() for there, of in pairs]
        return float(max(errors))

    return Case(calls, bytes_moved=moved, check=check)

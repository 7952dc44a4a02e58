"""Cache writes of keys and values, and a plain copy of bytes within the device."""

from __future__ import annotations

import torch

from pagesim.kernels import Cache, Sizes, reshape_and_cache
from pagesim.kernels.bench.inputs import DTYPES, query_dtype
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
    """Prepare a write of keys and values."""
    tokens, block_size, dtype = point["tokens"], point["block_size"], DTYPES[point["dtype"]]
    heads, width, new_dtype = point["kv_heads"], point["head_size"], query_dtype(point["dtype"])
    moved = 2 * tokens * heads * width * (dtype.itemsize + new_dtype.itemsize) + 8 * tokens
    sets = rotations(moved, session.device)
    blocks = -(-tokens // block_size) * sets + 1
    # Whole blocks of consecutive slots in random positions, as a prompt's tokens fill them.
    order = torch.randperm(blocks, generator=session.generator(point))
    slots = (order[:, None] * block_size + torch.arange(block_size)).flatten()[: sets * tokens]
    slots = slots.view(sets, tokens).to(session.device)
    shape = Sizes(blocks, block_size, heads, width).shape(point["layout"])
    cache = Cache(*(session.random(*shape, dtype=dtype) for _ in range(2)), layout=point["layout"])
    keys, values = (session.random(sets, tokens, heads, width, dtype=new_dtype) for _ in range(2))

    def call(where: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Call:
        return lambda: reshape_and_cache(key, value, cache, where)

    calls = [call(*each) for each in zip(slots, keys, values, strict=True)]

    def check() -> float:
        calls[0]()
        block, slot = slots[0] // block_size, slots[0] % block_size
        pairs = ((cache.keys, keys[0]), (cache.values, values[0]))
        errors = [(there[block, slot].float() - of.to(dtype).float()).abs().max() for there, of in pairs]
        return float(max(errors))

    return Case(calls, bytes_moved=moved, check=check)

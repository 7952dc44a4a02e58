"""Ops that move bytes within the device: plain copy, cache write, copies of blocks, gather and scatter."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from pagesim.kernels import api
from pagesim.kernels.bench import inputs
from pagesim.kernels.bench.dtypes import DTYPES, TOLERANCE, has_token_scales, query_dtype, vector_bytes
from pagesim.kernels.bench.rows import Point
from pagesim.kernels.bench.session import Case, Session
from pagesim.kernels.layouts import Sizes, find_layout
from pagesim.kernels.timing import Call, rotations


def prepare(point: Point, session: Session) -> Case:
    """Return a copying op, made ready."""
    builders: dict[str, Callable[[Point, Session], Case]] = {
        "device-copy": _device_copy,
        "reshape-and-cache": _reshape_and_cache,
        "copy-blocks": _copy_blocks,
        "gather-blocks": _gather_blocks,
        "scatter-blocks": _scatter_blocks,
    }
    return builders[point.op](point, session)


def _device_copy(point: Point, session: Session) -> Case:
    size = point["piece_bytes"]
    sets = rotations(size, session.device)
    source, target = (session.random(sets, size, dtype=torch.uint8) for _ in range(2))

    def call(to: torch.Tensor, of: torch.Tensor) -> Call:
        return lambda: to.copy_(of)

    calls = [call(*each) for each in zip(target, source, strict=True)]
    return Case(calls, bytes_moved=2 * size)


def _reshape_and_cache(point: Point, session: Session) -> Case:
    tokens, block_size, heads = point["tokens"], point["block_size"], point["kv_heads"]
    dtype, new_dtype = DTYPES[point["dtype"]], query_dtype(point["dtype"])
    layout = find_layout(point["layout"])
    vector = vector_bytes(point["dtype"], point["head_size"]) + point["head_size"] * new_dtype.itemsize
    moved = 2 * tokens * heads * vector + 8 * tokens
    sets = rotations(moved, session.device)
    blocks = -(-tokens // block_size) * sets + 1
    sizes = Sizes(blocks, block_size, heads, point["head_size"])
    keys, values = (session.random(*shape, dtype=dtype) for shape in layout.shapes(sizes, dtype.itemsize))
    scales = inputs.token_scales(point, session, blocks, heads, block_size)
    cache = api.Cache(keys, values, layout=layout, **inputs.named(scales))
    shape = (sets, tokens, heads, point["head_size"])
    new = [session.random(*shape, dtype=new_dtype) for _ in range(2)]
    # Whole blocks of neighbouring slots in random places, as a prompt's tokens fill them.
    order = torch.randperm(blocks, generator=session.generator(point))
    slots = (order[:, None] * block_size + torch.arange(block_size)).flatten()[: sets * tokens]
    slots = slots.view(sets, tokens).to(session.device)

    def call(key: torch.Tensor, value: torch.Tensor, where: torch.Tensor) -> Call:
        return lambda: api.reshape_and_cache(key, value, cache, where)

    def check() -> float:
        calls[0]()
        block, slot = slots[0] // block_size, slots[0] % block_size
        sides = ((layout.key, keys, new[0], cache.k_scale), (layout.value, values, new[1], cache.v_scale))
        errors = []
        for storage, stored, written, scale in sides:
            got, wanted = storage.to_plain(stored)[block, slot].float(), written[0]
            if isinstance(scale, torch.Tensor):  # of each token and head: rounded, so not equal
                got = got * scale[block, :, slot][..., None]
                errors.append((got - wanted.float()).abs().max() / wanted.float().abs().max())
            else:
                errors.append((got - wanted.to(dtype).float()).abs().max())
        return float(max(errors))

    calls = [call(*each) for each in zip(*new, slots, strict=True)]
    exact = not has_token_scales(point["dtype"])
    return Case(calls, bytes_moved=moved, check=check, tolerance=0.0 if exact else TOLERANCE[point["dtype"]])


def _copy_blocks(point: Point, session: Session) -> Case:
    pool, ids, moved = _pool(point, session, of_each=2)

    def call(pairs: torch.Tensor) -> Call:
        return lambda: api.copy_blocks(pool, pairs)

    def check() -> float:
        source, target = ids[0].view(-1, 2).unbind(1)
        calls[0]()
        return _differ((cache[source], cache[target]) for cache in pool.caches)

    calls = [call(chosen.view(-1, 2)) for chosen in ids]
    return Case(calls, bytes_moved=moved, check=check)


def _gather_blocks(point: Point, session: Session) -> Case:
    pool, ids, moved = _pool(point, session)
    out = session.empty(point["blocks"], len(pool), *pool.block, dtype=pool.dtype)
    out.fill_(torch.nan)

    def call(chosen: torch.Tensor) -> Call:
        return lambda: api.gather_blocks(pool, chosen, out=out)

    def check() -> float:
        calls[0]()
        return _differ((cache[ids[0]], out[:, place]) for place, cache in enumerate(pool.caches))

    calls = [call(chosen) for chosen in ids]
    return Case(calls, bytes_moved=moved, check=check)


def _scatter_blocks(point: Point, session: Session) -> Case:
    pool, ids, moved = _pool(point, session)
    staging = session.random(point["blocks"], len(pool), *pool.block, dtype=pool.dtype)

    def call(chosen: torch.Tensor) -> Call:
        return lambda: api.scatter_blocks(staging, pool, chosen)

    def check() -> float:
        calls[0]()
        return _differ((cache[ids[0]], staging[:, place]) for place, cache in enumerate(pool.caches))

    calls = [call(chosen) for chosen in ids]
    return Case(calls, bytes_moved=moved, check=check)


def _pool(point: Point, session: Session, of_each: int = 1) -> tuple[api.BlockPool, torch.Tensor, int]:
    """Return ``pieces`` caches, ids ``[S, of_each · blocks]`` without repetition, and the bytes of a call."""
    dtype = DTYPES[point["dtype"]]
    numbers = point["piece_bytes"] // dtype.itemsize
    moved = 2 * point["blocks"] * point["pieces"] * point["piece_bytes"]
    sets = rotations(moved, session.device)
    wanted = of_each * point["blocks"]
    caches = [session.random(sets * wanted, numbers, dtype=dtype) for _ in range(point["pieces"])]
    order = torch.randperm(sets * wanted, generator=session.generator(point))
    return api.BlockPool(caches), order.view(sets, wanted).to(session.device), moved


def _differ(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Return 0 if all pairs are equal, else 1."""
    return float(not all(torch.equal(a, b) for a, b in pairs))

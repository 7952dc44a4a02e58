"""Cache writes and block moves: what they write is bit for bit the reference's, and nothing else is."""

from __future__ import annotations

import pytest
import torch

from pagesim.kernels import (
    HND,
    NHD,
    VLLM,
    Sizes,
    copy_blocks,
    gather_blocks,
    reshape_and_cache,
    scatter_blocks,
)

F16, BF16, F32, FP8 = torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn
LAYOUTS = [NHD, HND, VLLM]


def same(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    """Whether tensors agree bit for bit, NaN included."""
    return all(
        torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(ours, theirs, strict=True)
    )


def caches(layout, dtype, block_size=16, head_dim=80, kv_heads=3):
    """Return a poisoned pair of caches, twice."""
    shapes = layout.shapes(Sizes(8, block_size, kv_heads, head_dim), dtype.itemsize)
    return tuple([torch.full(shape, float("nan")).to(dtype) for shape in shapes] for _ in range(2))


@pytest.mark.parametrize("dtype", [F16, BF16, F32], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
@pytest.mark.parametrize(("block_size", "tokens"), [(1, 5), (16, 63)])
def test_tokens_are_written_to_their_slots(layout, dtype, block_size, tokens):
    ours, theirs = caches(layout, dtype, block_size)
    key, value = torch.randn(2, tokens, 3, 80).to(dtype)
    slots = torch.randperm(8 * block_size)[:tokens]
    slots[::5] = -1
    reshape_and_cache(key, value, *ours, slots, layout=layout, backend="triton")
    reshape_and_cache(key, value, *theirs, slots, layout=layout)
    assert same(ours, theirs)


# The interpreter rounds to e4m3 wrongly where that carries into the exponent: these numbers are e4m3 already.
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
@pytest.mark.parametrize("scale", [0.25, torch.tensor([0.5, 2.0, 1.0])], ids=["one", "a head"])
def test_fp8_is_divided_by_its_scale_and_kept_within_448(layout, scale):
    ours, theirs = caches(layout, FP8)
    key, value = torch.randint(-8, 9, (2, 20, 3, 80)).to(BF16)
    key[3], value[4] = 2000, -2000
    slots = torch.randperm(8 * 16)[:20]
    for target, backend in ((ours, "triton"), (theirs, "reference")):
        reshape_and_cache(
            key, value, *target, slots, layout=layout, k_scale=scale, v_scale=scale, backend=backend
        )
    assert same(ours, theirs)
    assert ours[0].float().nan_to_num().max() == 448


def test_no_token_is_nothing_to_write():
    ours, theirs = caches(NHD, F16)
    empty = torch.empty(0, 3, 80, dtype=F16)
    reshape_and_cache(empty, empty, *ours, torch.empty(0, dtype=torch.int64), backend="triton")
    assert same(ours, theirs)


POOLS = [
    pytest.param(F16, (16, 3, 80), id="float16"),
    pytest.param(FP8, (1, 1, 64), id="FP8, a small block"),
    pytest.param(F32, (256, 2, 80), id="float32, a block of several pieces"),
]


def pool(dtype, block, blocks=9, count=3):
    return [torch.randn(blocks, *block).to(dtype) for _ in range(count)]


@pytest.mark.parametrize(("dtype", "block"), POOLS)
def test_blocks_are_copied_in_every_cache(dtype, block):
    ours = pool(dtype, block)
    theirs = [cache.clone() for cache in ours]
    pairs = torch.tensor([[0, 5], [1, 6], [0, 3]])
    copy_blocks(ours, pairs, backend="triton")
    copy_blocks(theirs, pairs)
    assert same(ours, theirs)
    assert same([ours[0][5]], [ours[0][0]])


@pytest.mark.parametrize(("dtype", "block"), POOLS)
def test_blocks_are_gathered_and_scattered(dtype, block):
    ours = pool(dtype, block)
    theirs = [cache.clone() for cache in ours]
    ids = torch.tensor([4, 0, 7])
    gathered = gather_blocks(ours, ids, backend="triton")
    assert same([gathered], [gather_blocks(theirs, ids)])
    elsewhere = torch.tensor([8, 4, 1])
    scatter_blocks(gathered, ours, elsewhere, backend="triton")
    scatter_blocks(gathered, theirs, elsewhere)
    assert same(ours, theirs)
    assert same([gather_blocks(ours, elsewhere, backend="triton")], [gathered])


def test_blocks_of_a_view_are_moved():
    both = torch.randn(6, 2, 16, 2, 64)
    before = both.clone()
    copy_blocks([both[:, 0], both[:, 1]], torch.tensor([[1, 4]]), backend="triton")
    before[4] = before[1]
    assert torch.equal(both, before)


def test_no_block_is_nothing_to_move():
    ours = pool(F16, (16, 3, 80))
    none = torch.empty(0, dtype=torch.int64)
    assert gather_blocks(ours, none, backend="triton").shape == (0, 3, 16, 3, 80)
    copy_blocks(ours, none.view(0, 2), backend="triton")


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("block_size", [1, 8, 16, 256])
def test_tokens_are_written_to_their_slots_on_a_grid(layout, head_dim, block_size):
    ours, theirs = caches(layout, F16, block_size, head_dim)
    slots = torch.randperm(8 * block_size)[:63]
    key, value = torch.randn(2, len(slots), 3, head_dim).to(F16)
    reshape_and_cache(key, value, *ours, slots, layout=layout, backend="triton")
    reshape_and_cache(key, value, *theirs, slots, layout=layout)
    assert same(ours, theirs)

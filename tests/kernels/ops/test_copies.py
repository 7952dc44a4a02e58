"""Cache writes and block moves: what they write is bit for bit the reference's, and nothing else is."""

from __future__ import annotations

import pytest
import torch

from pagesim.kernels import Cache, Sizes, copy_blocks, gather_blocks, reshape_and_cache, scatter_blocks

F16, BF16, F32, FP8 = torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn
LAYOUTS = ["NHD", "HND"]


def same(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    """Whether tensors agree, NaN included; its sign does not matter, which GPUs drop in FP8."""
    pairs = zip(ours, theirs, strict=True)
    return all(torch.equal(a.cpu().double().nan_to_num(9e9), b.double().nan_to_num(9e9)) for a, b in pairs)


def caches(layout, dtype, block_size=16, head_dim=80, kv_heads=3):
    """Return a poisoned pair of caches."""
    shape = Sizes(8, block_size, kv_heads, head_dim).shape(layout)
    return [torch.full(shape, float("nan")).to(dtype) for _ in range(2)]


def check_write(device, key, value, slots, theirs, layout, scale=1.0):
    """Write tokens on a device and, by the reference, on the CPU; return what was written there."""
    ours = [cache.to(device) for cache in theirs]
    there = scale.to(device) if isinstance(scale, torch.Tensor) else scale
    cache = Cache(*ours, layout=layout, k_scale=there, v_scale=there)
    reshape_and_cache(key.to(device), value.to(device), cache, slots.to(device), backend="triton")
    on_cpu = Cache(*theirs, layout=layout, k_scale=scale, v_scale=scale)
    reshape_and_cache(key, value, on_cpu, slots, backend="reference")
    assert same(ours, theirs)
    return ours


# The interpreter rounds to e4m3 wrongly where that carries into the exponent: these numbers are e4m3 already.
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("scale", [0.25, torch.tensor([0.5, 2.0, 1.0])], ids=["one", "a head"])
def test_fp8_is_divided_by_its_scale_and_kept_within_448(layout, scale, device):
    key, value = torch.randint(-8, 9, (2, 20, 3, 80)).to(BF16)
    key[3], value[4] = 2000, -2000
    slots = torch.randperm(8 * 16)[:20]
    ours = check_write(device, key, value, slots, caches(layout, FP8), layout, scale)
    assert ours[0].float().nan_to_num().max() == 448


def test_a_nan_stays_one_in_fp8(device):
    key, value = torch.ones(2, 4, 3, 80, dtype=F16)
    key[1, 2, 7], value[3, 0, 79] = float("nan"), float("-nan")
    keys, values = check_write(
        device, key, value, torch.tensor([9, 2, -1, 5]), caches("NHD", FP8), "NHD", 0.5
    )
    assert keys[0, 2].float().isnan().nonzero().tolist() == [[2, 7]]
    assert values[0, 5].float().isnan().nonzero().tolist() == [[0, 79]]
    assert keys[0, 9].float().unique().tolist() == [2.0]


def test_no_token_is_nothing_to_write(device):
    empty = torch.empty(0, 3, 80, dtype=F16)
    check_write(device, empty, empty, torch.empty(0, dtype=torch.int64), caches("NHD", F16), "NHD")


POOLS = [
    pytest.param(F16, (16, 3, 80), id="float16"),
    pytest.param(FP8, (1, 1, 64), id="FP8, a small block"),
    pytest.param(F32, (64, 2, 80), id="float32, a block of several pieces"),
]


def pool(dtype, block, count=2):
    return [torch.randn(9, *block).to(dtype) for _ in range(count)]


@pytest.mark.parametrize(("dtype", "block"), POOLS)
def test_blocks_are_copied_in_every_cache(dtype, block, device):
    theirs = pool(dtype, block)
    ours = [cache.to(device) for cache in theirs]
    pairs = torch.tensor([[0, 5], [1, 6], [0, 3]])
    copy_blocks(ours, pairs.to(device), backend="triton")
    copy_blocks(theirs, pairs)
    assert same(ours, theirs)
    assert same([ours[0][5]], [theirs[0][0]])


@pytest.mark.parametrize(("dtype", "block"), POOLS)
def test_blocks_are_gathered_and_scattered(dtype, block, device):
    theirs = pool(dtype, block)
    ours = [cache.to(device) for cache in theirs]
    ids, elsewhere = torch.tensor([4, 0, 7]), torch.tensor([8, 4, 1])
    gathered = gather_blocks(ours, ids.to(device), backend="triton")
    assert same([gathered], [gather_blocks(theirs, ids)])
    scatter_blocks(gathered, ours, elsewhere.to(device), backend="triton")
    scatter_blocks(gathered.cpu(), theirs, elsewhere)
    assert same(ours, theirs)


def test_blocks_of_a_view_are_moved(device):
    both = torch.randn(6, 2, 16, 2, 64, device=device)
    before = both.clone()
    copy_blocks([both[:, 0], both[:, 1]], torch.tensor([[1, 4]], device=device), backend="triton")
    before[4] = before[1]
    assert torch.equal(both, before)


def test_no_block_is_nothing_to_move(device):
    ours = [cache.to(device) for cache in pool(F16, (16, 3, 80))]
    none = torch.empty(0, dtype=torch.int64, device=device)
    assert gather_blocks(ours, none, backend="triton").shape == (0, 2, 16, 3, 80)
    copy_blocks(ours, none.view(0, 2), backend="triton")

"""Caches in int8 and FP8 with a scale a token and head: written, read by every op, moved by the block."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from pagesim.kernels import (
    HND,
    NHD,
    VLLM,
    BlockPool,
    Cache,
    Sizes,
    contiguous_decode_attention,
    copy_blocks,
    decode_attention,
    decode_plan,
    gather_blocks,
    gather_sequences,
    reshape_and_cache,
    scatter_blocks,
    token_scaled,
)
from pagesim.kernels.cases import Case, largest_error, make_case

F16, BF16, F32, FP8, INT8 = torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.int8
BOUND = {F16: 1e-3, BF16: 1e-2, F32: 2e-6}
MOST = {INT8: 127, FP8: 448}
SIZES = Sizes(num_blocks=8, block_size=16, kv_heads=3, head_dim=80)


def check(case: Case, device: torch.device, **plan: Any) -> None:
    there = case.to(device)
    options = {}
    if not case.is_prefill:
        options["plan"] = decode_plan(there.q, there.cache, case.context_lens, **plan)
    output = there.run(backend="triton", **options).cpu()
    assert largest_error(output, case.refer()) <= BOUND[case.q.dtype]


DECODE = {
    "int8": ({"context_lens": [63, 0, 130], "kv_dtype": INT8, "group": 4}, {}),
    "int8, in splits": ({"context_lens": [300, 5], "kv_dtype": INT8, "head_dim": 128}, {"num_splits": 3}),
    "int8, block 1": ({"context_lens": [65, 3], "kv_dtype": INT8, "block_size": 1, "head_dim": 80}, {}),
    "int8, bfloat16": ({"context_lens": [100], "kv_dtype": INT8, "dtype": BF16, "group": 7}, {}),
    "int8, float32": ({"context_lens": [40, 17], "kv_dtype": INT8, "dtype": F32}, {"tile": 16}),
    "int8, vLLM's layout": ({"context_lens": [41], "kv_dtype": INT8, "layout": VLLM, "block_size": 8}, {}),
    "FP8": ({"context_lens": [150, 63], "kv_dtype": FP8, "group": 4}, {}),
    "FP8, HND, block 256": (
        {"context_lens": [257, 300], "kv_dtype": FP8, "layout": HND, "block_size": 256, "dtype": BF16},
        {"num_splits": 2},
    ),
    "FP8, float32": ({"context_lens": [40], "kv_dtype": FP8, "dtype": F32, "head_dim": 96}, {"tile": 16}),
    "FP8, vLLM's layout": ({"context_lens": [33], "kv_dtype": FP8, "layout": VLLM, "head_dim": 80}, {}),
    "int8, head size 256": ({"context_lens": [40], "kv_dtype": INT8, "head_dim": 256}, {}),
    "int8, head size 72": ({"context_lens": [63, 130], "kv_dtype": INT8, "head_dim": 72, "group": 4}, {}),
    "FP8, head size 120, HND": (
        {"context_lens": [63], "kv_dtype": FP8, "head_dim": 120, "layout": HND, "dtype": BF16},
        {"num_splits": 2, "tile": 16},
    ),
    "int8, head size 512": (
        {"context_lens": [63, 0, 30], "kv_dtype": INT8, "head_dim": 512, "group": 4},
        {"num_splits": 2},
    ),
    "FP8, head size 512, queries": (
        {"context_lens": [40], "kv_dtype": FP8, "head_dim": 512, "queries": 3, "dtype": BF16},
        {},
    ),
    "int8, block 80": ({"context_lens": [161, 79], "kv_dtype": INT8, "block_size": 80}, {"num_splits": 2}),
    "int8, four queries": ({"context_lens": [63, 4], "kv_dtype": INT8, "queries": 4, "group": 4}, {}),
    "int8, a window and queries": (
        {"context_lens": [130, 9], "kv_dtype": INT8, "queries": 4, "window": 33, "group": 2},
        {"num_splits": 2, "window": 33, "tile": 16},
    ),
    "FP8, a window, sinks": (
        {"context_lens": [200, 20, 0], "kv_dtype": FP8, "window": 50, "sinks": True, "group": 4},
        {"window": 50},
    ),
    "FP8, soft cap": ({"context_lens": [70, 33], "kv_dtype": FP8, "softcap": 5.0}, {}),
    "int8, work list": (
        {"context_lens": [300, 5, 0], "kv_dtype": INT8},
        {"num_splits": 3, "work_list": True},
    ),
}


@pytest.mark.slow_but("int8", "FP8", "int8, a window and queries")
@pytest.mark.parametrize(("problem", "plan"), DECODE.values(), ids=DECODE.keys())
def test_decode_reads_numbers_and_scales(problem, plan, device):
    check(make_case(**problem, token_scales=True), device, **plan)


PREFILL = {
    "int8": {"context_lens": [40, 17], "query_lens": [9, 17], "kv_dtype": INT8, "group": 2},
    "FP8, vLLM's layout": {
        "context_lens": [70, 5],
        "query_lens": [70, 1],
        "kv_dtype": FP8,
        "dtype": BF16,
        "layout": VLLM,
    },
    "FP8, head size 80": {"context_lens": [33], "query_lens": [33], "kv_dtype": FP8, "head_dim": 80},
    "FP8, head size 72": {"context_lens": [33], "query_lens": [20], "kv_dtype": FP8, "head_dim": 72},
    "int8, head size 512": {"context_lens": [33], "query_lens": [9], "kv_dtype": INT8, "head_dim": 512},
    "int8, a window, a soft cap": {
        "context_lens": [150],
        "query_lens": [20],
        "kv_dtype": INT8,
        "window": 70,
        "softcap": 5.0,
        "sinks": True,
    },
}


@pytest.mark.slow_but("int8")
@pytest.mark.parametrize("problem", PREFILL.values(), ids=PREFILL.keys())
def test_prefill_reads_numbers_and_scales(problem, device):
    check(make_case(**problem, token_scales=True), device)


@pytest.mark.parametrize("kv_dtype", [INT8, FP8], ids=str)
def test_small_values_keep_their_bits_beside_float16(kv_dtype, device):
    """Weights times such scales alone would be below what float16 holds in full."""
    case = make_case([63], kv_dtype=kv_dtype, token_scales=True, group=2)
    check(replace(case, v_scale=case.v_scale * 2.0**-12), device)


@pytest.mark.parametrize("layout", [NHD, HND], ids=["NHD", "HND"])
def test_a_contiguous_batch_has_scales_too(layout, device):
    case = make_case([63, 0, 129], kv_dtype=INT8, token_scales=True, block_size=256, layout=layout)
    there = case.to(device)
    rows = there.block_table[:, 0].long().clamp_min(0)
    tensors = (there.key_cache[rows], there.value_cache[rows])
    scales = {"k_scale": there.k_scale[rows], "v_scale": there.v_scale[rows]}
    cache = Cache(*tensors, layout=layout, **scales, paged=False)
    output = contiguous_decode_attention(there.q, cache, there.context_lens, backend="triton")
    assert largest_error(output.cpu(), case.refer()) <= BOUND[F16]


def test_gathering_a_batch_brings_its_scales(device):
    case = make_case([63, 0, 40], kv_dtype=INT8, token_scales=True)
    there = case.to(device)
    batch = (there.block_table, there.context_lens)
    padded = gather_sequences(there.cache, *batch, backend="triton")
    plain = gather_sequences(case.cache, case.block_table, case.context_lens, backend="reference")
    for row, length in enumerate(case.context_lens.tolist()):
        for ours, theirs in ((padded.k_scale, plain.k_scale), (padded.v_scale, plain.v_scale)):
            assert torch.equal(ours[row, :, :length].cpu(), theirs[row, :, :length])
    output = contiguous_decode_attention(there.q, padded, there.context_lens, backend="triton")
    assert largest_error(output.cpu(), case.refer()) <= BOUND[F16]


def write(key, value, slots, kv_dtype, layout, device, backend="triton"):
    """Return a cache that was full of ones bits and its blocks' bytes, on the CPU, after a write."""
    cache, blocks = token_scaled(SIZES, kv_dtype, layout=layout, device=device)
    for tensor in blocks:
        tensor.fill_(0xFF)
    reshape_and_cache(key.to(device), value.to(device), cache, slots.to(device), backend=backend)
    return cache, [tensor.cpu() for tensor in blocks]


# The interpreter rounds to e4m3 wrongly where that carries into the exponent: these quotients are e4m3.
@pytest.mark.slow_but("int8-NHD", "FP8-VLLM")
@pytest.mark.parametrize("layout", [NHD, HND, VLLM], ids=lambda layout: layout.name)
@pytest.mark.parametrize("kv_dtype", [INT8, FP8], ids=["int8", "FP8"])
def test_what_is_written_is_bit_for_bit_the_references(kv_dtype, layout, device):
    key, value = torch.randn(2, 63, 3, 80).to(F16)
    if kv_dtype == FP8:
        key, value = torch.randint(-7, 8, (2, 63, 3, 80)) * torch.tensor(2.0) ** torch.randint(-9, 9, (3, 1))
        key[..., 3], value[..., 79] = key.abs().amax(-1).clamp_min(1e-3), -value.abs().amax(-1)
        for new in (key, value):  # the largest of a vector is 7 times a power of two, as 448 is
            new[new.abs().amax(-1) > 0] = new[new.abs().amax(-1) > 0].sign() * 7 * 2.0**-5
        key, value = key.to(BF16), value.to(BF16)
    slots = torch.randperm(8 * 16)[:63]
    slots[::5] = -1
    ours, theirs = (
        write(key, value, slots, kv_dtype, layout, where, backend)[1]
        for where, backend in ((device, "triton"), ("cpu", "reference"))
    )
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("backend", ["triton", "reference"])
def test_the_largest_of_a_vector_is_stored_as_127(backend, device):
    key, value = torch.randn(2, 20, 3, 80).to(F16)
    slots = torch.randperm(8 * 16)[:20]
    where = device if backend == "triton" else "cpu"
    cache, _ = write(key, value, slots, INT8, NHD, where, backend)
    for new, stored, scales in (
        (key, cache.key_cache, cache.k_scale),
        (value, cache.value_cache, cache.v_scale),
    ):
        for token, slot in enumerate(slots.tolist()):
            numbers = stored[slot // 16, slot % 16].cpu().double()  # [kv_heads, D]
            scale = scales[slot // 16, :, slot % 16].cpu().double()
            largest = new[token].double().abs().amax(-1)
            assert torch.allclose(scale, largest / 127, rtol=1e-6)
            assert (numbers.abs().amax(-1) == 127).all()
            error = (numbers * scale[:, None] - new[token].double()).abs().amax(-1)
            assert (error <= scale * 0.501).all()


@pytest.mark.parametrize("kv_dtype", [INT8, FP8], ids=str)
def test_zeros_stay_zeros_and_a_vector_with_a_nan_is_nan(kv_dtype, device):
    key, value = torch.ones(2, 4, 3, 80, dtype=F16)
    key[1], value[1] = 0, 0
    key[2, 1, 7], value[3, 0, 79] = float("nan"), float("-inf")
    cache, _ = write(key, value, torch.tensor([9, 2, 40, 5]), kv_dtype, NHD, device)

    def vectors(cells, scales):
        return (
            cells.cpu().float() * scales.cpu().transpose(1, 2)[..., None]
        )  # [blocks, block_size, kv_heads, D]

    keys, values = vectors(cache.key_cache, cache.k_scale), vectors(cache.value_cache, cache.v_scale)
    assert (keys[0, 2] == 0).all()
    assert (values[0, 2] == 0).all()
    assert keys[2, 8].isnan().all(dim=-1).tolist() == [False, True, False]
    assert values[0, 5].isnan().all(dim=-1).tolist() == [True, False, False]
    assert torch.allclose(keys[0, 9], torch.tensor(1.0))


@pytest.mark.parametrize("kv_dtype", [INT8, FP8], ids=str)
def test_scales_move_with_their_blocks(kv_dtype, device):
    key, value = torch.randn(2, 40, 3, 80).to(F16)
    table = torch.tensor([[7, 3, 2]], dtype=torch.int32, device=device)
    token = torch.arange(40)
    slots = table[0, token // 16].cpu().long() * 16 + token % 16
    cache, blocks = token_scaled(SIZES, kv_dtype, device=device)
    reshape_and_cache(key.to(device), value.to(device), cache, slots.to(device), backend="reference")
    q, lengths = (
        torch.randn(1, 3, 80).to(F16).to(device),
        torch.tensor([40], dtype=torch.int32, device=device),
    )
    before = decode_attention(q, cache, table, lengths, backend="reference")
    pool = BlockPool(blocks)
    copy_blocks(pool, torch.tensor([[7, 0], [3, 4]], device=device), backend="triton")
    staging = gather_blocks(pool, torch.tensor([2], device=device), backend="triton")
    for tensor in blocks:
        tensor[[7, 3, 2]] = 0xFF
    scatter_blocks(staging, pool, torch.tensor([1], device=device), backend="triton")
    moved = torch.tensor([[0, 4, 1]], dtype=torch.int32, device=device)
    assert torch.equal(decode_attention(q, cache, moved, lengths, backend="reference"), before)

"""The planner: splits where there is room, none where the GPU is full, and whatever it is told."""

from __future__ import annotations

import pytest

from pagesim import PagesimError
from pagesim.kernels import VLLM, Gpu, plan_decode
from pagesim.kernels.planner import query_rows

SHAPE = {"q_heads": 32, "kv_heads": 8, "head_dim": 128, "block_size": 16}


def test_a_full_gpu_needs_no_splits():
    assert plan_decode([4096] * 256, **SHAPE).num_splits == 1


def test_one_long_sequence_is_spread_over_the_gpu():
    plan = plan_decode([131_072], **SHAPE)
    assert 0.8 * 132 <= plan.num_splits * 8 <= 3 * 132
    assert plan.tokens_per_split * plan.num_splits >= 131_072


def test_a_short_context_is_not_cut():
    assert plan_decode([300], **SHAPE).num_splits == 1


def test_a_skewed_batch_is_cut_where_it_is_long():
    plan = plan_decode([131_072] + [128] * 200, **SHAPE)
    assert plan.num_splits > 8
    assert plan.tokens_per_split > 128  # the short ones stay whole


def test_a_smaller_gpu_is_filled_by_fewer_splits():
    small = plan_decode([131_072], **SHAPE, gpu=Gpu(sms=20, shared_bytes=100 * 1024))
    assert small.num_splits < plan_decode([131_072], **SHAPE).num_splits


@pytest.mark.parametrize(
    ("head_dim", "kv_bytes", "tile"), [(128, 2, 64), (128, 1, 64), (256, 2, 32), (64, 2, 128), (80, 4, 32)]
)
def test_a_tile_of_keys_is_16_kilobytes_in_registers(head_dim, kv_bytes, tile):
    plan = plan_decode([4096], **SHAPE | {"head_dim": head_dim}, kv_bytes=kv_bytes)
    assert plan.tile == tile


@pytest.mark.parametrize(
    ("group", "head_dim", "rows", "warps"),
    [(1, 128, 16, 4), (8, 64, 16, 4), (17, 128, 32, 4), (64, 128, 64, 8), (71, 80, 64, 8), (64, 256, 16, 4)],
)
def test_a_program_takes_as_many_query_heads_as_its_registers_hold(group, head_dim, rows, warps):
    assert query_rows(group, head_dim) == rows
    assert plan_decode([99], q_heads=group, kv_heads=1, head_dim=head_dim, block_size=16).num_warps == warps


def test_in_vllms_layout_a_tile_stays_within_a_block():
    assert plan_decode([4096], **SHAPE, layout=VLLM).tile == 16
    assert plan_decode([4096], **SHAPE | {"block_size": 256}, layout=VLLM).tile == 64


def test_what_is_asked_for_is_done():
    plan = plan_decode([1000, 10], **SHAPE, num_splits=3, tile=32, num_warps=8, num_stages=4)
    assert (plan.tile, plan.num_splits, plan.num_warps, plan.num_stages) == (32, 3, 8, 4)
    assert plan.tokens_per_split == 352
    assert plan.tokens_per_split % plan.tile == 0


@pytest.mark.parametrize("lengths", [[], [0], [0, 0]])
def test_nothing_to_attend_to_is_one_split(lengths):
    assert plan_decode(lengths, **SHAPE).num_splits == 1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"tile": 8}, "tile is 8; a power of two from 16 is needed"),
        ({"tile": 48}, "tile is 48"),
        ({"num_warps": 3}, "num_warps is 3; a power of two from 1 to 32 is needed"),
        ({"num_warps": 64}, "num_warps is 64"),
        ({"num_splits": 0}, "num_splits is 0; at least 1 is needed"),
        ({"num_splits": 70_000}, "num_splits is 70000; at most 65535 is allowed"),
        ({"num_splits": 1.5}, "num_splits is 1.5; a whole number is needed"),
        ({"head_dim": 0}, "head_dim is 0; at least 1 is needed"),
        ({"block_size": -1}, "block_size is -1; at least 0 is needed"),
        ({"kv_bytes": 0}, "kv_bytes is 0; at least 1 is needed"),
        ({"num_stages": 0}, "num_stages is 0"),
        ({"q_heads": 30}, "q_heads is 30; a multiple of kv_heads, which is 8, is needed"),
    ],
)
def test_what_cannot_be_is_said(wrong, said):
    with pytest.raises(PagesimError, match=said):
        plan_decode([100], **SHAPE | wrong)


@pytest.mark.parametrize(
    ("lengths", "said"),
    [([-5], "holds -5; at least 0 is needed"), ([7, 2.5], "holds 2.5; a whole number is needed")],
)
def test_lengths_are_whole_numbers_from_0(lengths, said):
    with pytest.raises(PagesimError, match=f"context_lens {said}"):
        plan_decode(lengths, **SHAPE)


def test_a_gpu_has_something():
    with pytest.raises(PagesimError, match="sms is 0; at least 1 is needed"):
        Gpu(sms=0)
    with pytest.raises(PagesimError, match="shared_bytes is -1; at least 1 is needed"):
        Gpu(shared_bytes=-1)


def test_no_more_splits_than_a_grid_has_room_for():
    assert plan_decode([2**31 - 1], **SHAPE, gpu=Gpu(sms=10**6)).num_splits <= 65_535


MHA = {"q_heads": 40, "kv_heads": 40, "head_dim": 128, "block_size": 16}


def cut(plan, length):
    """Return how many splits of a sequence hold tokens, and the tiles of the longest."""
    return plan.splits(length), -(-min(plan.split_tokens(length), length) // plan.tile)


@pytest.mark.parametrize("longest", [8192, 32_768, 131_072])
@pytest.mark.parametrize("length", [300, 2048, 8192])
def test_a_short_context_is_cut_alike_whatever_the_longest_may_be(length, longest):
    splits, chain = cut(plan_decode([longest], **SHAPE, capacity=True), length)
    own_splits, own_chain = cut(plan_decode([length], **SHAPE), length)
    assert chain <= 1.5 * own_chain
    assert splits >= own_splits - 1
    if length == 2048:
        assert splits <= own_splits + 1


@pytest.mark.parametrize("shape", [SHAPE, MHA], ids=["32/8", "40/40"])
@pytest.mark.parametrize("batch", [1, 8, 64, 256])
def test_no_batch_of_2048_tokens_loses_by_a_plan_for_131072(batch, shape):
    splits, chain = cut(plan_decode([131_072] * batch, **shape, capacity=True), 2048)
    own_splits, own_chain = cut(plan_decode([2048] * batch, **shape), 2048)
    assert chain <= 1.15 * own_chain
    assert splits <= 1.15 * own_splits


def test_sequences_of_no_tokens_take_no_splits():
    plan = plan_decode([131_072], **SHAPE, capacity=True)
    assert plan.splits(0) == 0
    assert plan_decode([0, 0], **SHAPE, capacity=True).num_splits == 1


def test_lengths_beyond_a_plan_make_splits_longer_and_not_more():
    plan = plan_decode([4096], **SHAPE, num_splits=4)
    assert [cut(plan, length) for length in (1024, 1025, 4096, 8192)] == [(1, 16), (2, 16), (4, 16), (4, 32)]

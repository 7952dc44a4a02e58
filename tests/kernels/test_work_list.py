"""When a batch's work becomes a list, and what is in it; programs are counted by the kernel's own rule."""

from __future__ import annotations

import pytest

from pagesim import PagesimError
from pagesim.kernels import DecodePlan, plan_decode
from pagesim.kernels.plan_constants import PlanConstants

SHAPE = {"q_heads": 32, "kv_heads": 8, "head_dim": 128, "block_size": 16}
SKEWED = [131_072] + [128] * 200


def test_one_long_sequence_among_short_ones_has_no_idle_programs():
    grid = plan_decode(SKEWED, **SHAPE, work_list=False).count(SKEWED)
    assert 8 * grid.started == 38_592
    assert 8 * grid.with_work == 1_792
    plan = plan_decode(SKEWED, **SHAPE)
    assert plan.count(SKEWED) == (grid.with_work, grid.with_work, grid.longest_chain)


@pytest.mark.parametrize(
    ("lengths", "makes_a_list"),
    [
        (SKEWED, True),
        ([16_384] + [1024] * 16, True),
        ([131_072], False),
        ([4096] * 8, False),
        ([4096] * 256, False),
        ([4096, 100], False),
        ([30_000] * 8 + [500] * 56, False),
        ([131_072] * 2 + [2048] * 62, False),
    ],
)
def test_a_list_is_made_where_idle_programs_take_a_twentieth_of_the_step(lengths, makes_a_list):
    assert (plan_decode(lengths, **SHAPE).row_splits is not None) == makes_a_list


def test_the_constants_say_where_a_list_is_made():
    never = PlanConstants(empty_tiles=0.0)
    always = PlanConstants(list_gain=0.0)
    assert plan_decode(SKEWED, **SHAPE, constants=never).row_splits is None
    assert plan_decode([4096, 100], **SHAPE, constants=always).row_splits == (16, 1)
    assert plan_decode([4096] * 8, **SHAPE, constants=always).row_splits is None  # none is idle


def test_every_sequence_has_a_program_for_it_may_grow():
    plan = plan_decode([1000, 0, 5], **SHAPE, num_splits=4, work_list=True)
    assert plan.row_splits == (4, 1, 1)
    assert plan.count([1000, 0, 5]) == (6, 5, 4)
    # As many splits as the list has, however long the sequence has become.
    assert [plan.splits(length, 2) for length in (1, 256, 10_000)] == [1, 1, 1]
    assert [plan.splits(length, 0) for length in (1, 256, 10_000)] == [1, 1, 4]


def test_plans_of_one_split_and_plans_for_a_capacity_have_none():
    assert plan_decode([4096] * 256, **SHAPE, work_list=True).row_splits is None
    assert plan_decode(SKEWED, **SHAPE, capacity=True).row_splits is None
    with pytest.raises(PagesimError, match="work_list is true and so is capacity"):
        plan_decode(SKEWED, **SHAPE, capacity=True, work_list=True)


def test_a_list_of_more_programs_than_a_grid_holds_stays_a_grid():
    assert plan_decode([1024] * 40_000, **SHAPE, num_splits=2, work_list=True).row_splits is None


def test_a_sequence_takes_a_split_at_least_and_not_more_than_there_are():
    with pytest.raises(PagesimError, match="row_splits holds 0; at least 1 is needed"):
        DecodePlan(64, 256, 4, 4, 3, row_splits=(0, 1))
    with pytest.raises(PagesimError, match="row_splits holds 5; at most 4 is allowed"):
        DecodePlan(64, 256, 4, 4, 3, row_splits=(5,))


def test_the_list_has_every_split_once_those_of_long_sequences_first():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from pagesim.kernels.work_list import work_list

    plan = DecodePlan(64, 256, 3, 4, 3, row_splits=(1, 3, 2))
    found = work_list(plan, 3, torch.device("cpu"))
    assert found is not None
    assert found.items.tolist() == [[1, 0, 3], [1, 1, 3], [1, 2, 3], [2, 0, 2], [2, 1, 2], [0, 0, 1]]
    assert found.row_splits.tolist() == [1, 3, 2]
    assert work_list(plan, 3, torch.device("cpu")) is found  # made once
    assert work_list(DecodePlan(64, 256, 3, 4, 3), 3, torch.device("cpu")) is None

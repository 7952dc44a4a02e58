"""Decode by a work list: the same as by a grid, for lengths that have changed since, too."""

from __future__ import annotations

import pytest
import torch

from pagesim import PagesimError
from pagesim.kernels import contiguous_decode_attention, decode_plan, gather_sequences
from pagesim.kernels.cases import Case, largest_error, make_case

SHAPE = {"group": 4, "kv_heads": 2}


def run_listed(case: Case, lengths: list[int], **forced: int) -> torch.Tensor:
    """Run a case by a list that was made for these lengths."""
    plan = decode_plan(case.q, case.cache, lengths, work_list=True, **forced)
    assert plan.row_splits is not None
    return case.run(plan=plan, backend="triton")


QUICK = {
    "a long sequence among short ones": ([1000, 1, 0, 63, 300], {"num_splits": 7}),
    "the longest is the last": ([1, 64, 700], {"num_splits": 3}),
}


@pytest.mark.slow_but("the longest is the last")
@pytest.mark.parametrize("name", QUICK)
def test_a_list_gives_what_a_grid_gives(name, device):
    lengths, forced = QUICK[name]
    case = make_case(lengths, **SHAPE).to(device)
    plan = decode_plan(case.q, case.cache, lengths, work_list=False, **forced)
    output = run_listed(case, lengths, **forced)
    assert torch.equal(output, case.run(plan=plan, backend="triton"))
    assert largest_error(output.cpu(), case.refer().cpu()) <= 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("group", "dtype", "block_size"),
    [(1, torch.float16, 1), (8, torch.float32, 16), (71, torch.float16, 16), (3, torch.float16, 256)],
)
def test_a_list_is_right_at_odd_shapes(group, dtype, block_size, device):
    lengths = [317, 0, 1, 64, 129, 3]
    case = make_case(lengths, group=group, dtype=dtype, block_size=block_size).to(device)
    output = run_listed(case, lengths, num_splits=5, tile=32)
    assert largest_error(output.cpu(), case.refer().cpu()) <= 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("now", [[1500, 300, 70, 640], [3, 900, 1, 1], [0, 0, 0, 0]])
def test_a_list_is_right_for_lengths_that_have_changed_since(now, device):
    case = make_case(now, **SHAPE).to(device)
    output = run_listed(case, [1000, 1, 0, 63], num_splits=6)
    if any(now):
        assert largest_error(output.cpu(), case.refer().cpu()) <= 1e-3
    else:
        assert (output == 0).all()


@pytest.mark.slow
def test_fp8_and_contiguous_caches_take_lists(device):
    lengths = [400, 5, 90]
    case = make_case(lengths, kv_dtype=torch.float8_e4m3fn, head_scales=True, **SHAPE).to(device)
    assert largest_error(run_listed(case, lengths, num_splits=4).cpu(), case.refer().cpu()) <= 1e-3
    plain = make_case(lengths, **SHAPE).to(device)
    padded = gather_sequences(plain.cache, plain.block_table, plain.context_lens)
    plan = decode_plan(plain.q, padded, lengths, num_splits=4, work_list=True)
    output = contiguous_decode_attention(plain.q, padded, plain.context_lens, plan=plan, backend="triton")
    assert largest_error(output.cpu(), plain.refer().cpu()) <= 1e-3


def test_a_list_is_for_as_many_sequences_as_it_was_made_for(device):
    case = make_case([300, 5]).to(device)
    with pytest.raises(PagesimError, match="plan has a work list for 3 sequences; q has 2, plan for these"):
        run_listed(case, [300, 5, 1], num_splits=2)

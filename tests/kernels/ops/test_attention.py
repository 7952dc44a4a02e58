"""Paged attention at odd shapes: decode, prefill, mixed batches, windows, sinks, soft caps, FP8, splits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import triton

from pagesim.kernels import attention, paged_attention
from pagesim.kernels.launch import run_all
from tests.kernels.cases import Case, largest_error, make_case

F16, BF16, F32, FP8 = torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn
BOUND = {F16: 1e-3, BF16: 1e-2, F32: 1e-6}
CAPPED_BOUND = {F16: 1e-3, BF16: 1e-2, F32: 2e-5}  # tanh is 1 less a quotient, off by 10⁻⁷ of the cap


def check(case: Case, output: torch.Tensor) -> None:
    """Compare with the exact answer, and its error with that of the reference in the type of the queries.

    The root mean squares of both are compared: what the largest of some hundred roundings is, is chance.
    """
    exact, dtype = case.refer(), case.q.dtype
    error = largest_error(output.cpu(), exact)
    assert error <= (BOUND if case.softcap is None else CAPPED_BOUND)[dtype]
    if case.softcap is None:
        assert rms(output.cpu() - exact) <= 2 * rms(case.refer(dtype) - exact)


def rms(error: torch.Tensor) -> float:
    return error.double().pow(2).mean().sqrt().item()


def cut(
    case: Case, device: torch.device, splits: int, tile: int = 16, rows: int = 16, least: int = 0
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Run the kernels as they are cut up here; return the result and the splits' sums, written over NaN."""
    there = case.to(device)
    out = torch.full_like(there.q, float("nan"))
    config = triton.Config({"BLOCK_M": rows, "BLOCK_N": tile}, num_warps=4, num_stages=2)
    launches = attention.launches(
        there.q,
        there.cache,
        *there.batch,
        out,
        max_query_len=1,
        scale=case.q.shape[-1] ** -0.5,
        **there.variant,
        num_splits=splits,
        min_split=least,
        config=config,
    )
    lse = launches[0].arguments["LSE"].fill_(float("nan")) if splits > 1 else None
    return run_all(launches, out).cpu(), lse


PROBLEMS = {
    "block 5": {"context_lens": [161, 79, 80], "block_size": 5, "group": 2},
    "block 544, FP8": {"context_lens": [161, 79], "block_size": 544, "kv_dtype": FP8},
    "head size 192": {"context_lens": [40], "head_dim": 192},
    "a window": {"context_lens": [200, 20, 0, 64], "window": 50, "group": 4},
    "a soft cap, float32": {"context_lens": [63, 100], "softcap": 3.0, "group": 4, "dtype": F32},
    "a chunk, a decode, nothing": {
        "context_lens": [90, 33, 40], "query_lens": [19, 1, 0], "group": 4, "kv_heads": 1,
    },
    "queries of 71 heads": {"context_lens": [40], "query_lens": [2], "group": 71, "kv_heads": 1},
    "all at once": {
        "context_lens": [70, 40, 0], "query_lens": [17, 7, 0], "window": 25, "sinks": True, "softcap": 4.0,
        "group": 2, "kv_dtype": FP8, "head_scales": True, "dtype": BF16,
    },
}  # fmt: skip
"""What the hostile grid does not have: odd sizes of blocks and heads, and errors near the reference's."""


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS.keys())
def test_the_op_is_exact(problem, device):
    case = make_case(**problem)
    check(case, case.to(device).run(backend="triton"))


@pytest.mark.parametrize(
    ("problem", "splits"), [("a window", 3), ("a chunk, a decode, nothing", 2), ("all at once", 3)]
)
def test_splits_are_exact(problem, splits, device):
    case = make_case(**PROBLEMS[problem])
    check(case, cut(case, device, splits, tile=32 if splits == 2 else 16)[0])


def test_a_batch_of_one_query_each_is_a_decode(device):
    case = make_case([70, 5, 40], group=4)
    starts = replace(case, query_starts=torch.arange(4, dtype=torch.int32))
    outputs = [each.to(device).run(backend="triton").cpu() for each in (case, starts)]
    assert torch.equal(*outputs)


def test_each_split_takes_its_part_of_the_rows_own_length(device):
    """A split that holds tokens writes the logarithm of its sum, another minus infinity."""
    case = make_case([300, 0, 17, 64], block_size=32)
    output, lse = cut(case, device, splits=4, tile=16, least=32)  # lse [batch, q_heads, splits]
    holds = (lse > float("-inf")).sum(dim=2)
    assert not lse.isnan().any()
    assert holds.tolist() == [[4, 4], [0, 0], [1, 1], [2, 2]]
    check(case, output)


def test_a_reduction_takes_more_splits_than_it_reads_at_once(device):
    case = make_case([300, 20], kv_heads=1, group=2)
    check(case, cut(case, device, splits=20)[0])


def test_tiles_before_the_window_are_not_read(device):
    """The splits that hold tokens are those of the tokens from the window's first tile on."""
    case = make_case([1000, 300], query_lens=[4, 4], group=2, window=40)
    output, lse = cut(case, device, splits=5, tile=16, least=16)
    assert (lse > float("-inf")).sum(dim=2).max() <= 4  # of 56 + 3 tokens at most, in tiles of 16
    check(case, output)


@pytest.mark.parametrize(("rows", "tile"), [(16, 128), (64, 16)])
def test_any_configuration_is_exact(rows, tile, device):
    case = make_case([130, 40], query_lens=[37, 3], group=3, kv_heads=1, block_size=64)
    check(case, cut(case, device, 1, tile, rows)[0])
    check(case, cut(case, device, 2, tile, rows)[0])


def test_what_is_not_a_row_of_the_result_stays_as_it_is(device):
    case = make_case([20, 33], query_lens=[3, 5], group=3).to(device)
    wide = torch.full((8, 9, 64), 7.0, dtype=F16, device=device)
    paged_attention(case.q, case.cache, *case.batch, out=wide[:, 1:7], backend="triton")
    assert (wide[:, [0, 7, 8]] == 7).all()
    check(case.to("cpu"), wide[:, 1:7])


def test_no_sequence_is_nothing_to_do(device):
    case = make_case([5]).to(device)
    empty = paged_attention(
        case.q[:0], case.cache, case.block_table[:0], case.context_lens[:0], backend="triton"
    )
    assert empty.shape == (0, 2, 64)


def test_splits_keep_a_gpu_busy_and_are_not_too_short():
    cpu = torch.device("cpu")
    assert attention.choose_splits(1, 100_000, cpu) == 128
    assert attention.choose_splits(1, 1024, cpu) == 16
    assert attention.choose_splits(1, 100, cpu) == 1
    assert attention.choose_splits(64, 100_000, cpu) == 4
    assert attention.choose_splits(1000, 100_000, cpu) == 1

"""Several queries a sequence, sliding windows, soft caps and sinks, in decode and in prefill."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch

from pagesim.kernels import HND, VLLM, DecodePlan, decode, decode_plan
from pagesim.kernels.cases import Case, largest_error, make_case
from pagesim.kernels.planner import first_seen, read_tokens

F16, BF16, F32, FP8 = torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn
BOUND = {F16: 1e-3, BF16: 1e-2, F32: 1e-6}
CAPPED_BOUND = {F16: 1e-3, BF16: 1e-2, F32: 2e-5}  # tanh is 1 less a quotient, off by 10⁻⁷ of the cap


def check(case: Case, device: torch.device, plan: DecodePlan | None = None) -> None:
    """Compare with the exact answer; whatever no query sees is NaN, and its table entries name no block."""
    options = {} if case.is_prefill else {"plan": plan}
    output = case.to(device).run(backend="triton", **options).cpu()
    exact, dtype = case.refer(), case.q.dtype
    bounds = BOUND if case.variant.softcap is None else CAPPED_BOUND
    assert largest_error(output, exact) <= bounds[dtype]


def planned(case: Case, splits: int, tile: int | None = 16) -> DecodePlan:
    window = case.variant.window
    return decode_plan(case.q, case.cache, case.context_lens, window=window, num_splits=splits, tile=tile)


DECODES = {
    "four queries": {"context_lens": [63, 4, 130], "queries": 4, "group": 4},
    "eight queries across a tile's end": {"context_lens": [66, 71], "queries": 8, "group": 2},
    "more queries than tokens": {"context_lens": [3, 0, 1], "queries": 5, "group": 3},
    "queries of 71 heads": {"context_lens": [40], "queries": 2, "group": 71, "kv_heads": 1},
    "queries, block 1, head 80": {"context_lens": [50], "queries": 3, "block_size": 1, "head_dim": 80},
    "queries, FP8": {"context_lens": [70], "queries": 4, "group": 4, "kv_dtype": FP8},
    "queries, float32": {"context_lens": [37], "queries": 3, "group": 2, "dtype": F32},
    "a window": {"context_lens": [200, 20, 0, 64], "window": 50, "group": 4},
    "a window of one token": {"context_lens": [65, 64], "window": 1},
    "a window of whole tiles": {"context_lens": [128, 129], "window": 64},
    "a window and queries": {"context_lens": [130, 9], "window": 33, "queries": 4, "group": 2},
    "a window of fewer tokens than queries": {"context_lens": [70], "window": 2, "queries": 8},
    "a window, HND, block 256": {"context_lens": [300], "window": 40, "layout": HND, "block_size": 256},
    "a window, vLLM's layout": {"context_lens": [100], "window": 40, "layout": VLLM},
    "sinks": {"context_lens": [63, 0, 200], "sinks": True, "group": 4},
    "sinks, float32": {"context_lens": [63], "sinks": True, "group": 2, "dtype": F32},
    "a soft cap": {"context_lens": [63, 100], "softcap": 3.0, "group": 4},
    "a soft cap, float32": {"context_lens": [63], "softcap": 3.0, "dtype": F32},
    "a soft cap, FP8, a scale a head": {
        "context_lens": [70],
        "softcap": 2.0,
        "kv_dtype": FP8,
        "head_scales": True,
        "group": 2,
    },
    "all at once": {
        "context_lens": [190, 3, 0],
        "window": 70,
        "sinks": True,
        "softcap": 5.0,
        "queries": 4,
        "group": 8,
        "dtype": BF16,
    },
}


@pytest.mark.slow_but("four queries-3", "a window and queries-3", "all at once-1", "all at once-3")
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("problem", DECODES.values(), ids=DECODES.keys())
def test_decode(problem, splits, device):
    case = make_case(**problem)
    check(case, device, planned(case, splits) if splits > 1 else None)


PREFILLS = {
    "a window": {"context_lens": [200], "query_lens": [90], "window": 50, "group": 4},
    "a window longer than the prompt": {"context_lens": [60, 9], "query_lens": [60, 9], "window": 100},
    "a window of one token": {"context_lens": [80], "query_lens": [70], "window": 1},
    "a window after a prefix, block 1": {
        "context_lens": [300, 0, 70],
        "query_lens": [5, 0, 70],
        "window": 64,
        "block_size": 1,
    },
    "sinks": {"context_lens": [90], "query_lens": [40], "sinks": True, "group": 3},
    "a soft cap": {"context_lens": [90], "query_lens": [90], "softcap": 3.0, "dtype": BF16},
    "all at once": {
        "context_lens": [150, 40],
        "query_lens": [80, 7],
        "window": 45,
        "sinks": True,
        "softcap": 4.0,
        "group": 4,
        "kv_dtype": FP8,
        "head_scales": True,
    },
}


@pytest.mark.slow_but("all at once")
@pytest.mark.parametrize("problem", PREFILLS.values(), ids=PREFILLS.keys())
def test_prefill(problem, device):
    check(make_case(**problem), device)


GRID = list(product((1, 16, 64), (1, 4, 8), (1, 2, 5, 8), (None, 1, 37, 64), (1, 4)))


@pytest.mark.slow
@pytest.mark.parametrize("numbers", GRID[::5], ids=lambda numbers: "-".join(map(str, numbers)))
def test_decode_on_a_grid(numbers, device):
    """Every fifth combination: block, group, queries, window, splits."""
    block, group, queries, window, splits = numbers
    case = make_case(
        [67, 130], block_size=block, group=group, queries=queries, window=window, sinks=group > 1, kv_heads=1
    )
    check(case, device, planned(case, splits))


def test_one_of_several_queries_is_the_only_one(device):
    """With one query a sequence, both shapes of queries are the same problem."""
    case = make_case([70, 5], group=4)
    several = replace(case, q=case.q[:, None])
    outputs = [one.to(device).run(backend="triton").cpu() for one in (case, several)]
    assert torch.equal(outputs[0], outputs[1][:, 0])


def test_queries_may_be_a_view(device):
    case = make_case([63, 30], group=2, queries=3)
    fused = torch.full((2, 3, 12, 64), float("nan"), dtype=F16)
    fused[:, :, 4:8] = case.q
    check(replace(case, q=fused[:, :, 4:8]), device, planned(case, 2))


@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize("queries", [1, 4])
def test_tiles_before_the_window_are_not_read(queries, splits, device):
    """The splits that hold tokens are those of the tokens from the window's first tile on."""
    window, tile, lengths = 40, 16, [1000, 300, 10, 0]
    case = make_case(lengths, group=2, queries=queries, window=window)
    plan = DecodePlan(tile, 32, splits + 1, num_warps=4, num_stages=3)
    there = case.to(device)
    out = torch.empty_like(there.q)
    attention, reduction = decode.launches(*there.arguments, None, plan, out, there.variant)
    lse = attention.arguments["lse"].fill_(float("nan"))  # [batch, queries, q_heads, splits]
    attention.run(out)
    reduction.run(out)
    reads = [read_tokens(length, tile, queries, window) for length in lengths]
    assert max(reads) < window + queries + tile
    written = (~lse.isnan()).sum(dim=-1).flatten(1)
    assert written.tolist() == [[plan.splits(read)] * written.shape[1] for read in reads]
    assert largest_error(out.cpu(), case.refer()) <= BOUND[F16]


def test_the_first_token_that_is_seen():
    assert first_seen(1000, 1, None) == first_seen(10, 1, 10) == first_seen(3, 8, 2) == 0
    assert (first_seen(1000, 1, 40), first_seen(1000, 4, 40)) == (960, 957)
    assert read_tokens(1000, 16, 1, 40) == 40
    assert read_tokens(1001, 16, 1, 40) == 41


SIZES = {
    "head 32": {"head_dim": 32},
    "head 112, FP8": {"head_dim": 112, "kv_dtype": FP8},
    "head 160, vLLM's layout": {"head_dim": 160, "layout": VLLM},
    "head 192, bfloat16": {"head_dim": 192, "dtype": BF16},
    "head 72": {"head_dim": 72},
    "head 72, FP8, HND": {"head_dim": 72, "kv_dtype": FP8, "layout": HND},
    "head 120, bfloat16, vLLM's layout": {"head_dim": 120, "dtype": BF16, "layout": VLLM},
    "head 512": {"head_dim": 512},
    "head 512, FP8, a soft cap": {"head_dim": 512, "kv_dtype": FP8, "softcap": 5.0},
    "head 512, vLLM's layout, a window": {"head_dim": 512, "layout": VLLM, "window": 90},
    "head 512, bfloat16, sinks": {"head_dim": 512, "dtype": BF16, "sinks": True},
    "block 80": {"block_size": 80},
    "block 80, a window": {"block_size": 80, "window": 90},
    "block 5": {"block_size": 5},
    "block 528, vLLM's layout": {"block_size": 528, "layout": VLLM},
    "block 544, FP8": {"block_size": 544, "kv_dtype": FP8},
    "block 1056, HND": {"block_size": 1056, "layout": HND},
    "block 2096": {"block_size": 2096},
}


@pytest.mark.slow_but("head 192, bfloat16", "head 512", "block 80, a window")
@pytest.mark.parametrize("problem", SIZES.values(), ids=SIZES.keys())
def test_sizes_that_are_no_power_of_two(problem, device):
    """Contexts that end within, at and beyond a block of 80, in two splits; then a prefill."""
    decode_case = make_case([161, 79, 80], **problem, group=2, kv_heads=1)
    check(decode_case, device, planned(decode_case, 2, tile=None))
    check(make_case([161, 80], query_lens=[3, 1], **problem, group=2, kv_heads=1), device)

"""Decode attention, paged and contiguous, in one pass and in splits, at odd shapes."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle, product

import pytest
import torch

from pagesim.kernels import (
    HND,
    NHD,
    VLLM,
    Cache,
    DecodePlan,
    api,
    decode,
    decode_plan,
    gather_decode_attention,
)
from pagesim.kernels.cases import Case, largest_error, make_case

F16, BF16, F32, FP8 = torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn
BOUND = {F16: 1e-3, BF16: 1e-2, F32: 1e-6}


def check(case: Case, output: torch.Tensor) -> None:
    exact, dtype = case.refer(), case.q.dtype
    error, eager = largest_error(output, exact), largest_error(case.refer(dtype), exact)
    assert error <= BOUND[dtype]
    assert error <= 2 * eager
    assert (output[case.context_lens == 0] == 0).all()


def run(case: Case, device: torch.device, **plan: int) -> torch.Tensor:
    chosen = decode_plan(case.q.to(device), case.cache, case.context_lens, **plan)
    assert chosen.num_splits == plan.get("num_splits", chosen.num_splits)
    return run_planned(case, device, chosen)


def run_planned(case: Case, device: torch.device, plan: DecodePlan | None) -> torch.Tensor:
    """Run a problem that lies on the CPU on a device; the reference stays where it is."""
    return case.to(device).run(plan=plan, backend="triton").cpu()


QUICK = {
    "one token": ({"context_lens": [1]}, {}),
    "63 tokens and an empty row": ({"context_lens": [63, 0, 64, 65], "group": 4}, {}),
    "only an empty row": ({"context_lens": [0]}, {}),
    "skewed, in splits": ({"context_lens": [1000, 1, 0, 63], "group": 8, "kv_heads": 1}, {"num_splits": 4}),
    "block 1": ({"context_lens": [65, 3], "block_size": 1, "head_dim": 80}, {}),
    "block 256": ({"context_lens": [300, 256], "block_size": 256, "head_dim": 128}, {"num_splits": 3}),
    "block 32, tile 16": ({"context_lens": [75], "block_size": 32}, {"tile": 16}),
    "HND": ({"context_lens": [63, 130], "layout": HND, "group": 3, "head_dim": 96}, {}),
    "vLLM's layout, block 16": (
        {"context_lens": [63, 33], "layout": VLLM, "head_dim": 80},
        {"num_splits": 2},
    ),
    "vLLM's layout, block 8": ({"context_lens": [41], "layout": VLLM, "block_size": 8}, {}),
    "71 query heads of one KV head": (
        {"context_lens": [70], "group": 71, "kv_heads": 1},
        {"num_splits": 2, "tile": 64},
    ),
    "bfloat16": ({"context_lens": [100, 63], "dtype": BF16, "group": 4}, {}),
    "float32": ({"context_lens": [63, 5], "dtype": F32, "group": 2}, {"num_splits": 2, "tile": 32}),
    "head size 256": ({"context_lens": [40], "head_dim": 256}, {}),
    "FP8": ({"context_lens": [150, 63], "kv_dtype": FP8, "group": 4}, {}),
    "FP8, a scale a head": (
        {"context_lens": [63], "kv_dtype": FP8, "head_scales": True, "dtype": BF16, "layout": VLLM},
        {"num_splits": 2},
    ),
}


@pytest.mark.slow_but(
    "63 tokens and an empty row", "skewed, in splits", "vLLM's layout, block 8", "FP8, a scale a head"
)
@pytest.mark.parametrize(("problem", "plan"), QUICK.values(), ids=QUICK.keys())
def test_paged_decode(problem, plan, device):
    case = make_case(**problem)
    check(case, run(case, device, **plan))


BLOCKS, GROUPS, LAYOUTS = (1, 16, 256), (1, 4, 8), (NHD, HND, VLLM)
DTYPES = ((F16, F16), (BF16, BF16), (F32, F32), (F16, FP8))

# A third of all combinations, in which every two values of different parameters still meet. The cycles'
# lengths and the number of dtypes have no divisor in common, so that each dtype meets all of them.
GRID = [
    {"block_size": block, "group": group, "layout": layout, "dtype": dtype, "kv_dtype": kv_dtype}
    | {"head_dim": head_dim, "context_lens": lens, "num_splits": splits}
    for (block, group, layout, (dtype, kv_dtype)), head_dim, lens, splits in zip(
        (
            (block, group, LAYOUTS[(i + j + k) % 3], dtypes)
            for (i, block), (j, group), (k, dtypes) in product(*map(enumerate, (BLOCKS, GROUPS, DTYPES)))
        ),
        cycle((64, 80, 96, 128, 256)),
        cycle(([63, 1], [0, 300, 65], [1000])),
        cycle((1, 3, 1, 2, 1, 4, 1)),
        strict=False,
    )
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "problem", GRID, ids=lambda problem: "-".join(str(getattr(x, "name", x)) for x in problem.values())
)
def test_paged_decode_on_a_grid(problem, device):
    splits = problem["num_splits"]
    longest = max(problem["context_lens"])
    given = {name: value for name, value in problem.items() if name != "num_splits"}
    case = make_case(**given, kv_heads=1)
    plan = decode_plan(case.q, case.cache, [longest], num_splits=splits)
    check(case, run_planned(case, device, plan))


def test_a_plan_for_shorter_contexts_is_right_too(device):
    case = make_case([300, 40])
    for plan in (decode_plan(case.q, case.cache, [64, 64]), decode_plan(case.q, case.cache, [0])):
        check(case, run_planned(case, device, plan))


@pytest.mark.parametrize("splits", [1, 3, 5])
def test_the_kernel_fills_as_many_splits_as_the_plan_says(splits, device):
    """A split that holds tokens writes the logarithm of its sum, another writes nothing."""
    case = make_case([300, 0, 17, 64], block_size=32)
    plan = DecodePlan(tile=16, tokens_per_split=32, num_splits=splits + 1, num_warps=4, num_stages=3)
    there = case.to(device)
    out = torch.empty_like(there.q)
    attention, reduction = decode.launches(*there.arguments, None, plan, out)
    lse = attention.arguments["lse"].fill_(float("nan"))  # [batch, q_heads, splits]
    attention.run(out)
    reduction.run(out)
    written = (~lse.isnan()).sum(dim=2)
    assert written.tolist() == [2 * [plan.splits(length)] for length in case.context_lens.tolist()]
    check(case, out.cpu())


@pytest.mark.parametrize("batch", [[300], [300, 4, 0]], ids=len)
def test_a_plan_for_a_capacity_is_right_for_any_length(batch, device):
    case = make_case(batch, group=2)
    plan = decode_plan(case.q, case.cache, [100_000] * len(batch), capacity=True)
    assert plan.num_splits > 1
    check(case, run_planned(case, device, plan))


def test_without_a_plan_the_tables_width_is_planned_for(device):
    case = make_case([300, 40], group=4)
    check(case, run_planned(case, device, None))


def test_caches_may_be_interleaved_and_queries_a_view(device):
    case = make_case([63, 30], group=2)
    there = case.to(device)
    both = torch.stack([there.key_cache, there.value_cache], dim=1)  # [blocks, 2, block_size, kv_heads, D]
    fused = torch.cat([there.q, torch.full_like(there.q, float("nan"))], dim=1)
    view = replace(there, q=fused[:, :4], key_cache=both[:, 0], value_cache=both[:, 1])
    assert not view.q.is_contiguous()
    check(case, view.run(backend="triton").cpu())


def test_fp8_values_that_lie_at_odd_bytes_are_not_taken_in_pairs(device):
    case = make_case([63, 30], group=2, kv_dtype=FP8)
    assert case.cache.pairs is not None
    wide = torch.zeros(*case.value_cache.shape[:-1], 65, dtype=torch.uint8).view(FP8)
    odd = replace(case, value_cache=wide[..., :64].copy_(case.value_cache))
    assert odd.cache.pairs is None
    check(odd, run_planned(odd, device, None))


@pytest.mark.parametrize("layout", [NHD, HND], ids=["NHD", "HND"])
@pytest.mark.parametrize("splits", [1, 2])
def test_contiguous_decode_is_paged_decode_without_the_paging(layout, splits, device):
    case = make_case([63, 0, 129], group=2, block_size=256, layout=layout)
    there = case.to(device)
    rows = there.block_table[:, 0].long().clamp_min(0)
    cache = Cache(there.key_cache[rows], there.value_cache[rows], layout=layout, paged=False)
    plan = decode_plan(there.q, cache, case.context_lens, num_splits=splits)
    output = api.contiguous_decode_attention(
        *(there.q, cache, there.context_lens),
        plan=plan,
        out=torch.full_like(there.q, float("nan")),
        backend="triton",
    ).cpu()
    check(case, output)
    assert torch.equal(output, run_planned(case, device, plan))


@pytest.mark.parametrize(
    ("layout", "head_dim"),
    [(NHD, 80), (HND, 72), (VLLM, 80), (NHD, 512)],
    ids=["NHD", "HND, 72", "VLLM", "NHD, 512"],
)
def test_gathering_first_gives_the_same(layout, head_dim, device):
    case = make_case([63, 0, 40], group=2, head_dim=head_dim, layout=layout)
    room = torch.full((2, 3, 64, 2, head_dim), 99.0, dtype=F16, device=device)
    there = case.to(device)
    padded = Cache(*room, paged=False)
    output = gather_decode_attention(*there.arguments, workspace=padded, backend="triton")
    check(case, output.cpu())
    for row, length in enumerate(case.context_lens.tolist()):
        assert (room[:, row, length:] == 99).all(), "what lies beyond a context is left as it is"

"""Prefill attention: whole prompts, chunks, cached prefixes, at odd shapes."""

from __future__ import annotations

from itertools import cycle, product

import pytest
import torch

from pagesim.kernels import HND, NHD, VLLM
from pagesim.kernels.cases import Case, largest_error, make_case

F16, BF16, F32, FP8 = torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn
BOUND = {F16: 1e-3, BF16: 1e-2, F32: 1e-6}


def check(case: Case, device: torch.device, **options: int) -> None:
    output = case.to(device).run(backend="triton", **options).cpu()
    exact, dtype = case.refer(), case.q.dtype
    error, eager = largest_error(output, exact), largest_error(case.refer(dtype), exact)
    assert error <= BOUND[dtype]
    assert error <= 2 * eager


QUICK = {
    "a prompt": {"context_lens": [63], "query_lens": [63], "group": 4},
    "one token": {"context_lens": [1], "query_lens": [1]},
    "a chunk after its prefix, and rows with none": {
        "context_lens": [200, 0, 63, 30],
        "query_lens": [37, 0, 63, 0],
        "group": 2,
    },
    "a decode as a prefill": {"context_lens": [130, 65], "query_lens": [1, 1], "group": 8, "head_dim": 128},
    "block 1": {"context_lens": [70], "query_lens": [33], "block_size": 1, "head_dim": 80},
    "block 256": {"context_lens": [300], "query_lens": [40], "block_size": 256, "group": 3},
    "HND": {"context_lens": [90], "query_lens": [64], "layout": HND, "head_dim": 96},
    "vLLM's layout": {"context_lens": [90, 33], "query_lens": [20, 33], "layout": VLLM, "group": 4},
    "bfloat16": {"context_lens": [90], "query_lens": [64], "dtype": BF16, "group": 4},
    "float32": {"context_lens": [50], "query_lens": [20], "dtype": F32, "group": 3},
    "float32, head size 256": {"context_lens": [20], "query_lens": [4], "dtype": F32, "head_dim": 256},
    "head size 256": {"context_lens": [70], "query_lens": [33], "head_dim": 256},
    "71 query heads of one KV head": {"context_lens": [30], "query_lens": [5], "group": 71, "kv_heads": 1},
    "FP8": {"context_lens": [90], "query_lens": [64], "kv_dtype": FP8, "group": 4},
    "FP8, a scale a head": {"context_lens": [63], "query_lens": [9], "kv_dtype": FP8, "head_scales": True},
}


@pytest.mark.slow_but("a chunk after its prefix, and rows with none", "HND", "FP8, a scale a head")
@pytest.mark.parametrize("problem", QUICK.values(), ids=QUICK.keys())
def test_prefill(problem, device):
    check(make_case(**problem), device)


def test_the_longest_query_may_be_named(device):
    check(make_case([63, 100], query_lens=[10, 9], group=4), device, max_query_len=10)


BLOCKS, GROUPS, LAYOUTS = (1, 16, 256), (1, 4, 8), (NHD, HND, VLLM)
DTYPES = ((F16, F16), (BF16, BF16), (F32, F32), (F16, FP8))

# A third of all combinations, in which every two values of different parameters still meet. The cycles'
# lengths and the number of dtypes have no divisor in common, so that each dtype meets all of them.
GRID = [
    {"block_size": block, "group": group, "layout": layout, "dtype": dtype, "kv_dtype": kv_dtype}
    | {"head_dim": head_dim, "context_lens": lens, "query_lens": queries}
    for (block, group, layout, (dtype, kv_dtype)), head_dim, (lens, queries) in zip(
        (
            (block, group, LAYOUTS[(i + j + k) % 3], dtypes)
            for (i, block), (j, group), (k, dtypes) in product(*map(enumerate, (BLOCKS, GROUPS, DTYPES)))
        ),
        cycle((64, 80, 96, 128, 256)),
        cycle((([63, 1], [17, 1]), ([300, 0], [3, 0]), ([90, 20], [9, 20]))),
        strict=False,
    )
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "problem", GRID, ids=lambda problem: "-".join(str(getattr(x, "name", x)) for x in problem.values())
)
def test_prefill_on_a_grid(problem, device):
    check(make_case(**problem, kv_heads=1), device)

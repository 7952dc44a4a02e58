"""Scores of any sign and size: scales that are negative or zero, products far beyond what float32 counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pagesim.kernels import decode_attention, decode_plan, prefill_attention, reference
from pagesim.kernels.cases import Case, largest_error, make_case

BOUND = {torch.float16: 1e-3, torch.bfloat16: 1e-2, torch.float32: 2e-5}
KINDS = {
    "decode": {"context_lens": [70, 5], "group": 4, "kv_heads": 1},
    "decode in splits": {"context_lens": [150], "group": 2, "kv_heads": 1, "num_splits": 3},
    "prefill": {"context_lens": [150], "query_lens": [9], "group": 2, "kv_heads": 1},
}


def problem(kind: str, **options: object) -> tuple[Case, int]:
    """Return a problem of a kind, and into how many splits it is cut."""
    given = {**KINDS[kind], **options}
    splits = given.pop("num_splits", 1)
    return make_case(**given), splits


def output(case: Case, splits: int, scale: float | None, device: torch.device) -> Tensor:
    there = case.to(device)
    if case.is_prefill:
        return prefill_attention(*there.arguments, scale=scale, backend="triton").cpu()
    plan = decode_plan(there.q, there.cache, case.context_lens.tolist(), num_splits=splits, tile=32)
    return decode_attention(*there.arguments, scale=scale, plan=plan, backend="triton").cpu()


def exact(case: Case, scale: float) -> Tensor:
    op = reference.prefill_attention if case.is_prefill else reference.decode_attention
    q, _, *batch = case.arguments
    pair = (case.key_cache, case.value_cache)
    return op(q.double(), *pair, *batch, scale=scale, compute_dtype=torch.float64)


@pytest.mark.parametrize(
    "dtype",
    [torch.float16, *(pytest.param(each, marks=pytest.mark.slow) for each in list(BOUND)[1:])],
    ids=str,
)
@pytest.mark.parametrize("scale", [-0.5, 0.0, 3.0])
@pytest.mark.parametrize("kind", KINDS)
def test_a_scale_may_be_of_any_sign(kind, scale, dtype, device):
    case, splits = problem(kind, dtype=dtype)
    assert largest_error(output(case, splits, scale, device), exact(case, scale)) <= BOUND[dtype]


@pytest.mark.parametrize("first", [1.0, 2e4], ids=["from the start", "in the last tile alone"])
@pytest.mark.parametrize("kind", KINDS)
def test_products_may_exceed_what_float32_counts(kind, first, device):
    """Scores of 10⁹ leave one key of weight 1: its value is the output, and nothing is infinite."""
    case, splits = problem(kind)
    small = torch.ones_like(case.key_cache)
    early = case.block_table[0, : len(case.block_table[0]) // 2].long()
    small[early] = 1 / first
    huge = replace(case, q=case.q * 1e4, key_cache=case.key_cache * 1e4 * small)
    found, wanted = output(huge, splits, None, device), exact(huge, 0.125)
    assert found.isfinite().all()
    assert largest_error(found, wanted) <= BOUND[torch.float16]

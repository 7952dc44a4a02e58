"""Shared-prefix (cascade) attention: what plain decode gives, with blocks that are shared read once."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch

from pagesim.kernels import (
    HND,
    VLLM,
    DecodePlan,
    SharedPrefixes,
    cascade_decode_attention,
    cascade_plan,
    decode_attention,
)
from pagesim.kernels.cases import Case, largest_error, make_case

F16, BF16, F32, FP8 = torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn
BOUND = {F16: 1e-3, BF16: 1e-2, F32: 1e-6}


def sharing(case: Case, groups) -> Case:
    """Return a problem in which groups of rows begin with the same blocks, those of the group's first."""
    table = case.block_table.clone()
    for rows, blocks in groups:
        table[rows, :blocks] = table[rows[0], :blocks].clone()
    return replace(case, block_table=table)


def run(case: Case, groups, device, **options) -> torch.Tensor:
    there = case.to(device)
    q, cache, *batch = there.arguments
    prefixes = SharedPrefixes(cache, *batch, groups)
    if "num_splits" in options:
        options["plans"] = cascade_plan(q, cache, prefixes, num_splits=options.pop("num_splits"))
    out = torch.full_like(q, float("nan"))
    return cascade_decode_attention(q, cache, prefixes, out=out, backend="triton", **options).cpu()


def check(case: Case, output: torch.Tensor) -> None:
    assert largest_error(output, case.refer()) <= BOUND[case.q.dtype]
    assert (output[case.context_lens == 0] == 0).all()


PROBLEMS = {
    "all rows": ({"context_lens": [40, 33, 70]}, [([0, 1, 2], 2)], (1, 1)),
    "two groups, rows of none, an empty row": (
        {"context_lens": [40, 100, 0, 33, 90, 5, 64], "group": 4},
        [([1, 4, 6], 4), ([3, 0], 2)],
        (2, 3),
    ),
    "nothing of their own": ({"context_lens": [64, 64, 80], "group": 2}, [([0, 1, 2], 4)], (3, 1)),
    "one row": ({"context_lens": [50, 20], "group": 2}, [([1], 1)], (1, 1)),
    "many sharers of many heads": (
        {"context_lens": [40] * 9, "group": 9, "kv_heads": 1},
        [(list(range(9)), 2)],
        (2, 1),
    ),
    "block 1": ({"context_lens": [9, 8], "block_size": 1}, [([0, 1], 7)], (1, 2)),
    "block 256": ({"context_lens": [300, 260], "block_size": 256, "head_dim": 128}, [([0, 1], 1)], (2, 2)),
    "head size 80, HND": ({"context_lens": [70, 50], "layout": HND, "head_dim": 80}, [([1, 0], 3)], (2, 1)),
    "head size 72": ({"context_lens": [70, 50], "head_dim": 72, "group": 2}, [([0, 1], 3)], (2, 2)),
    "head size 512": ({"context_lens": [40, 37], "head_dim": 512, "group": 2}, [([1, 0], 2)], (2, 1)),
    "vLLM's layout, bfloat16": (
        {"context_lens": [70, 50], "layout": VLLM, "dtype": BF16, "group": 4},
        [([0, 1], 3)],
        (1, 2),
    ),
    "float32": ({"context_lens": [50, 40], "dtype": F32, "group": 2}, [([0, 1], 2)], (1, 1)),
    "FP8, a scale a head": (
        {"context_lens": [60, 50], "kv_dtype": FP8, "head_scales": True, "group": 4},
        [([0, 1], 3)],
        (2, 2),
    ),
    "int8, a scale a token and head": (
        {"context_lens": [60, 50], "kv_dtype": torch.int8, "token_scales": True, "group": 4},
        [([0, 1], 3)],
        (2, 2),
    ),
}


@pytest.mark.slow_but("nothing of their own", "head size 80, HND")
@pytest.mark.parametrize(("problem", "groups", "splits"), PROBLEMS.values(), ids=PROBLEMS)
def test_cascade(problem, groups, splits, device):
    case = sharing(make_case(**problem), groups)
    check(case, run(case, groups, device, num_splits=splits))
    check(case, run(case, groups, device))


@pytest.mark.slow
def test_it_is_what_plain_decode_gives(device):
    groups = [([0, 2], 2)]
    case = sharing(make_case([40, 20, 50], group=2), groups)
    plain = decode_attention(*case.to(device).arguments, backend="triton").cpu()
    torch.testing.assert_close(run(case, groups, device), plain, atol=1e-3, rtol=1e-3)


@pytest.mark.slow
def test_any_plans_give_the_right_answer(device):
    groups = [([0, 2], 4)]
    case = sharing(make_case([90, 20, 70], group=2), groups)
    for shared in ((16, 16, 1, 4, 3), (16, 16, 9, 4, 3), (64, 1 << 20, 2, 4, 3)):
        plans = (DecodePlan(*shared), DecodePlan(32, 32, 2, 4, 3))
        check(case, run(case, groups, device, plans=plans))
        check(case, run(case, groups, device, plans=plans[::-1]))


@pytest.mark.slow
def test_queries_may_be_a_view(device):
    groups = [([0, 1], 2)]
    case = sharing(make_case([40, 33], group=2), groups)
    fused = torch.cat([case.q, torch.full_like(case.q, float("nan"))], dim=1)
    check(case, run(replace(case, q=fused[:, :4]), groups, device))


@pytest.fixture
def bytes_read(monkeypatch):
    """Return a function that counts the bytes which a call loads from a tensor: the interpreter's loads."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("loads are counted by Triton's interpreter")
    from triton.runtime.interpreter import InterpreterBuilder

    loads = []
    load = InterpreterBuilder.create_masked_load

    def counted(self, pointers, mask, *others):
        loads.append(pointers.data[mask.data.astype(bool)])
        return load(self, pointers, mask, *others)

    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", counted)

    def count(tensor, call):
        loads.clear()
        call()
        first = tensor.data_ptr()
        size = tensor.element_size()
        end = first + tensor.numel() * size
        return size * sum(int(((at >= first) & (at < end)).sum()) for at in loads)

    return count


def test_shared_blocks_are_read_once(bytes_read):
    lengths, shared = [70, 45, 40], 2
    groups = [([0, 1, 2], shared)]
    case = sharing(make_case(lengths, group=2, kv_heads=1), groups)
    token = 64 * 2  # bytes of a key
    plain = lambda: decode_attention(*case.arguments, backend="triton")  # noqa: E731
    assert bytes_read(case.cache.key_cache, plain) == sum(lengths) * token
    cascade = lambda: run(case, groups, "cpu")  # noqa: E731
    fewest = sum(lengths) - 2 * shared * 16
    for tensor in (case.cache.key_cache, case.cache.value_cache):
        assert bytes_read(tensor, cascade) == fewest * token


@pytest.mark.slow
def test_they_are_read_again_for_heads_that_a_program_has_no_rows_for(bytes_read):
    """17 sharers of 8 query heads on a KV head are 136 rows, of which a program takes 64."""
    groups = [(list(range(17)), 1)]
    case = sharing(make_case([17] * 17, group=8, kv_heads=1), groups)
    read = bytes_read(case.cache.key_cache, lambda: run(case, groups, "cpu"))
    assert read == (3 * 16 + 17) * 64 * 2

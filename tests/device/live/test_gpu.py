"""Live runs on a GPU: the same cases, in fp16, with and without CUDA graphs."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU")


def test_every_sequence_reads_its_own_tokens(any_case, cases, live, make_trace):
    options, columns, kinds = cases[any_case]
    summary = live(make_trace(**columns), options, device="cuda").summary
    assert summary["live"]["check"]["passed"], summary["live"]["check"]
    assert summary["live"]["dtype"] == "fp16"
    assert kinds <= summary["live"]["check"]["sequences"].keys()


@pytest.mark.parametrize("case", ["sosp, swap", "sosp, two samples", "v0", "v1, chunks", "token by token"])
def test_decoding_in_graphs_is_right(case, cases, live, make_trace):
    options, columns, _ = cases[case]
    check = live(make_trace(**columns), options, device="cuda", cuda_graphs=True).summary["live"]["check"]
    assert check["passed"], check


def test_bfloat16_reads_the_same(cases, live, make_trace):
    options, columns, _ = cases["sosp, two samples"]
    live_on = live(make_trace(**columns), {**options, "kv_cache_dtype": "bf16"}, device="cuda").summary[
        "live"
    ]
    assert live_on["dtype"] == "bf16"
    assert live_on["check"]["passed"], live_on["check"]


@pytest.mark.parametrize("swap", ["copy-each", "copy-batch", "gather"])
def test_every_swap_strategy_brings_back_what_it_took(swap, cases, live, make_trace):
    options, columns, _ = cases["sosp, swap"]
    check = live(make_trace(**columns), options, device="cuda", swap=swap).summary["live"]["check"]
    assert check["passed"], check
    assert check["sequences"]["swapped"]


def test_parts_are_within_the_whole(live, make_trace):
    steps = live(make_trace(), {"num_blocks": 30, "preemption": "swap"}, device="cuda", check=False).steps
    assert (steps[["step_s", "prepare_s", "compute_s"]] > 0).all(axis=None)
    assert (steps["compute_s"] <= steps["step_s"]).all()
    assert (steps["move_s"] <= steps["step_s"]).all()

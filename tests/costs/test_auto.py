"""``--cost auto`` takes the best profile there is and says which; where there is none it is the roofline."""

from __future__ import annotations

from typing import Any

import pytest

import pagesim as ps
from pagesim.costs import CostModel, EngineTime, Profiled, Roofline, Target, parse_cost, step_shape
from pagesim.errors import PagesimError
from pagesim.hardware import gpu
from pagesim.models import model

ENGINE = EngineTime(1e-3, 2e-5)


def auto(name: str, on: str, text: str = "auto", **others: Any) -> CostModel:
    options = {"tp": 1, "block_size": 16, "kv_dtype": "bf16", "engine": ENGINE, "release": "vllm 0.33.0"}
    return parse_cost(text, Target(model=model(name), gpu=gpu(on), **{**options, **others}))


def test_operators_of_the_gpu_are_summed_up_and_their_errors_are_said():
    cost = auto("llama-3.1-8b", "h100")
    assert isinstance(cost, Profiled)
    assert cost.profile.gpu == "h100"
    (note,) = [note for note in cost.notes if "using operators" in note]
    assert note.startswith(
        "using operators of vllm 0.24.0 timed on h100, for vllm 0.33.0: on held-out runs of dense"
    )
    (of_experts,) = [n for n in auto("qwen3-30b-a3b", "h100").notes if "using operators" in n]
    assert "with experts" in of_experts


def test_a_bundled_profile_of_the_model_comes_first():
    cost = auto("llama-2-7b", "a100-80gb")
    assert isinstance(cost, Profiled)
    assert any(
        "using profile llama-2-7b-a100-tp1: imported, median" in n or "tp1: imported" in n for n in cost.notes
    )


@pytest.mark.parametrize(
    ("name", "on", "others"),
    [
        ("opt-13b", "a100-80gb", {}),
        ("llama-3.1-8b", "l40s", {}),
        ("llama-3.1-70b", "h100", {"tp": 16}),
        ("llama-3.1-8b", "h100", {"kv_dtype": "fp8"}),
        ("gpt-oss-20b", "a100-80gb", {}),
        ("deepseek-v3", "h200", {"tp": 8}),
        ("deepseek-v3.2", "b200", {"tp": 8}),
        ("qwen3-next-80b", "h100", {"tp": 4}),
        ("llama-4-scout-fp8", "b200", {"tp": 4}),
    ],
)
def test_any_model_division_and_type_is_summed_up(name, on, others):
    cost = auto(name, on, **others)
    assert isinstance(cost, Profiled)
    steps = [cost.iteration(step_shape(batch, batch * 1000)) for batch in (1, 16, 256)]
    assert 0 < steps[0] < steps[1] < steps[2]


@pytest.mark.parametrize(
    "on", ["mi300x", "v100", "rtx-3090", "rtx-4090", "h20", "a100-40gb", "h100-pcie", "gb10"]
)
def test_where_no_operators_hold_it_is_the_roofline_and_says_how_far_that_is_off(on):
    cost = auto("llama-3.1-8b", on)
    assert isinstance(cost, Roofline)
    plain = auto("llama-3.1-8b", on, "roofline")
    assert cost.iteration(step_shape(8, 9000)) == plain.iteration(step_shape(8, 9000))
    assert any(
        f"no operators were timed on {on}; using datasheet estimates (cost roofline)" in note
        for note in cost.notes
    )


def test_weights_of_another_type_are_borrowed_and_said():
    target = {"gpu": gpu("h100"), "tp": 1, "block_size": 16, "kv_dtype": "bf16"}
    spec = model("llama-3.1-8b")
    fp8 = parse_cost("auto", Target(model=spec.with_weights("fp8"), **target))
    assert isinstance(fp8, Profiled)
    assert fp8.profile.sources["linear"] == "gemm fp8, vllm 0.24.0"
    int4 = parse_cost("auto", Target(model=spec.with_weights("int4"), **target))
    assert any("products with int4 weights were not timed on h100" in note for note in int4.notes)
    step = step_shape(1, 500)
    assert int4.iteration(step) < fp8.iteration(step)


def test_it_is_the_default_and_a_run_says_what_it_took():
    trace = ps.make_trace("fixed:100,10", num_requests=5)
    result = ps.simulate(trace, "vllm-v1", model="qwen3-8b", gpu="h100")
    assert any("using operators of vllm 0.24.0 timed on h100" in note for note in result.notes)


def test_it_takes_an_engines_own_time_and_a_kernel_of_experts():
    plain = auto("qwen3-30b-a3b", "b200", engine=EngineTime())
    named = auto("qwen3-30b-a3b", "b200", "auto:overhead_s=0.002,sequence_s=1e-5")
    step = step_shape(8, 9000)
    assert named.iteration(step) - plain.iteration(step) == 2_080_000_000
    triton = auto("minimax-m2.5", "b200", "auto:moe_backend=triton", tp=4, engine=EngineTime())
    first = auto("minimax-m2.5", "b200", tp=4, engine=EngineTime())
    assert triton.iteration(step) > first.iteration(step)
    with pytest.raises(PagesimError, match="auto takes overhead_s, sequence_s, moe_backend, not 'fast'"):
        auto("llama-3.1-8b", "h100", "auto:fast")
    with pytest.raises(PagesimError, match="moe_backend is 'fast'; it must be one of triton"):
        auto("qwen3-30b-a3b", "h100", "auto:moe_backend=fast")
    # A bundled profile's overhead gives way to what is given by hand.
    own = auto("llama-2-7b", "a100-80gb", "auto:overhead_s=0.5")
    assert own.iteration(step) > 500_000_000_000

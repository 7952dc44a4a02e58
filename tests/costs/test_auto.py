"""``--cost auto`` takes the best profile there is and says which; where there is none it is the roofline."""

from __future__ import annotations

from typing import Any

import pytest

import pagesim as ps
from pagesim.costs import CostModel, EngineTime, Profiled, Roofline, parse_cost, step_shape
from pagesim.errors import PagesimError
from pagesim.hardware import gpu
from pagesim.models import model

ENGINE = EngineTime(1e-3, 2e-5)


def auto(name: str, on: str, text: str = "auto", **others: Any) -> CostModel:
    options = {"tp": 1, "block_size": 16, "kv_dtype": "bf16", "engine": ENGINE, "release": "vllm 0.33.0"}
    return parse_cost(text, model=model(name), gpu=gpu(on), **{**options, **others})


def test_a_profile_of_the_model_on_the_gpu_is_taken_and_its_errors_are_said():
    cost = auto("llama-3.1-8b", "h100")
    assert isinstance(cost, Profiled)
    named = auto("llama-3.1-8b", "h100", "profile:llama-3.1-8b-h100-tp1")
    for shape in (step_shape(8, 9000), step_shape(3, 700, prompt=1000)):
        assert cost.iteration(shape) == named.iteration(shape)
    (note,) = [note for note in cost.notes if "using profile" in note]
    assert "llama-3.1-8b-h100-tp1: imported, mean errors on held-out points linear" in note
    assert "operators of vllm 0.24.0 for vllm 0.33.0" in note


@pytest.mark.parametrize(
    ("name", "on", "others"),
    [
        ("opt-13b", "a100-40gb", {}),  # a rescaled profile is no better than a roofline
        ("llama-3.1-8b", "l40s", {}),
        ("llama-3.1-8b", "h100", {"tp": 16}),
        ("llama-3.1-8b", "h100", {"kv_dtype": "fp8"}),
    ],
)
def test_where_no_profile_holds_it_is_the_roofline_and_says_how_far_that_is_off(name, on, others):
    if others.get("tp"):
        name = "llama-3.1-70b"
    cost = auto(name, on, **others)
    assert isinstance(cost, Roofline)
    plain = auto(name, on, "roofline", **others)
    assert cost.iteration(step_shape(8, 9000)) == plain.iteration(step_shape(8, 9000))
    assert any(
        "no measured profile matches" in note and "using datasheet estimates" in note for note in cost.notes
    )


def test_weights_of_another_type_are_another_model():
    target = {"gpu": gpu("h100"), "tp": 1, "block_size": 16, "kv_dtype": "bf16"}
    spec = model("llama-3.1-8b")
    fp8 = parse_cost("auto", model=spec.with_weights("fp8"), **target)
    assert isinstance(fp8, Profiled)
    assert any("llama-3.1-8b-h100-tp1-fp8" in note for note in fp8.notes)
    assert isinstance(parse_cost("auto", model=spec.with_weights("int4"), **target), Roofline)


@pytest.mark.parametrize("name", ["gpt-oss-20b", "deepseek-v3"])
def test_windows_experts_and_latent_attention_have_profiles(name):
    assert isinstance(auto(name, "h200", tp=8), Profiled)


def test_it_is_the_default_and_a_run_says_what_it_took():
    trace = ps.make_trace("fixed:100,10", num_requests=5)
    result = ps.simulate(trace, "vllm-v1", model="qwen3-8b", gpu="h100")
    assert any("using profile qwen3-8b-h100-tp1" in note for note in result.notes)


def test_it_takes_the_engines_own_time_and_nothing_else():
    for on in ("h100", "l4"):
        own, by_hand = (
            auto("llama-3.1-8b", on, text).decode(8, 9000)[0] for text in ("auto", "auto:overhead_s=0.003")
        )
        assert by_hand - own == 2_000_000_000, "3 ms in place of 1 ms"
    with pytest.raises(PagesimError, match="auto takes overhead_s, sequence_s, not 'fast'"):
        auto("llama-3.1-8b", "h100", "auto:fast")

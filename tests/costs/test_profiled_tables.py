"""Profiles whose terms are tables: a run of decode steps is its steps, and every layer is priced."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pagesim as ps
from pagesim.costs import UNBOUNDED, IterationShape, Profiled, Reach, parse_cost
from pagesim.costs.engines import EngineTime
from pagesim.costs.profiles import (
    ANY,
    Curve,
    DecodeTable,
    Profile,
    PromptTable,
    ReachTerm,
    Shape,
    StatesTerm,
    analytic_profile,
    load_profile,
    rescale,
)
from pagesim.costs.specs import ModelSpec, gpu, model
from pagesim.costs.specs.layers import FullLayer, StateLayer, WindowLayer
from pagesim.errors import PagesimError
from pagesim.sim.clock import to_ticks

H100, LLAMA = gpu("h100"), model("llama-3.1-8b")
WINDOWED = replace(LLAMA, name="windowed", cached=(FullLayer(8, 128), WindowLayer(8, 128, 64)) * 16)


def decode_table(factor: float = 1.0) -> DecodeTable:
    """Return a table whose lines have other slopes in every piece."""
    batch, length = (1, 2, 8, 32), (4, 16, 64, 256)
    seconds = tuple(tuple(factor * 1e-5 * (10 + b * c**0.8) for c in length) for b in batch)
    return DecodeTable(batch=batch, length=length, seconds=seconds)


def prompt_table() -> PromptTable:
    batch, length = (1, 4, 16), (1, 128, 1024, 4096)
    return PromptTable(
        batch=batch,
        length=length,
        seconds=tuple(tuple(1e-4 + 1e-8 * b * s**1.5 for s in length) for b in batch),
    )


def profile_of(spec: ModelSpec, tp: int = 1, **terms: object) -> Profile:
    analytic = analytic_profile(H100, spec, tp=tp, kv_dtype="bf16", block_sizes=(1,))
    moving = {term: {ANY: analytic.terms.whole(term)[1]} for term in ("copy", "swap_out", "swap_in")}
    update = {
        **{"decode": {ANY: decode_table()}, "prefill": {ANY: prompt_table()}},
        **{"overhead": Curve(at=(1,), seconds=(0.0,)), "copy_": moving.pop("copy")},
        **moving,
        **terms,
    }
    new = analytic.terms.model_copy(update=update)
    origins = dict.fromkeys(new.names(), "imported")
    return analytic.model_copy(update={"kind": "imported", "terms": new, "origins": origins})


def windowed() -> Profile:
    within = ReachTerm(kind="window", size=64, decode=decode_table(0.5), prefill=prompt_table())
    return profile_of(WINDOWED, reaching=(within,))


def shape(sequences: int, context: int, reached: tuple[int, ...] = ()) -> IterationShape:
    return IterationShape(
        *(sequences, sequences, context, context, 0, 0, 0, 0, sequences, sequences), reached=reached
    )


def cost_of(profile: Profile, spec: ModelSpec, **options: int) -> Profiled:
    return Profiled(profile, spec, kv_dtype="bf16", **options)


@given(st.integers(1, 40), st.integers(0, 400), st.integers(0, 39))
def test_a_run_is_its_steps_up_to_where_it_says(sequences: int, mean: int, odd: int):
    cost = cost_of(profile_of(LLAMA), LLAMA)
    context = sequences * (mean + 1) + odd % sequences
    first, increment, steps = cost.decode(sequences, context)
    assert steps >= 1
    for step in {0, 1, min(steps, 500) // 2, min(steps, 500) - 1}:
        if step < steps:
            assert cost.iteration(shape(sequences, context + step * sequences)) == first + step * increment
    # And it ends where the next line begins, not before.
    if steps < UNBOUNDED:
        beyond = context + steps * sequences
        assert beyond // sequences in (4, 16, 64)


@given(st.integers(1, 40), st.integers(1, 100), st.integers(0, 40), st.integers(0, 40))
def test_a_run_within_a_window_is_its_steps_too(sequences: int, mean: int, odd: int, growing: int):
    """Some sequences' windows are full and no longer grow; others' grow by a token a step."""
    cost = cost_of(windowed(), WINDOWED)
    assert cost.reaches == (Reach("window", 64),)
    growing = min(growing, sequences)
    context = sequences * mean + odd % sequences
    within = min(context, (sequences - growing) * 64 + growing * min(mean, 40))
    first, increment, steps = cost.decode_reached(sequences, context, [(within, growing, 20)])
    assert 1 <= steps <= 20
    for step in range(steps):
        now = shape(sequences, context + step * sequences, (within + step * growing,))
        assert cost.iteration(now) == first + step * increment


def test_an_iteration_is_the_sum_of_its_terms():
    experts = Curve(at=(1, 100), seconds=(1e-3, 2e-3))
    eager = Curve(at=(1, 100), seconds=(5e-3, 5e-3))
    profile = profile_of(LLAMA, 2, experts=experts, all_reduce_eager=eager)
    cost = cost_of(profile, LLAMA, tp=2)
    terms = profile.terms
    assert terms.all_reduce is not None
    graph = terms.linear(4) + terms.head(4) + terms.write(4) + experts(4) + terms.all_reduce(4)
    assert cost.iteration(shape(4, 400)) == pytest.approx(to_ticks(graph + decode_table()(4, 400)), abs=900)
    prompt = IterationShape(100, 100, 100, 0, 5050, 0, 0, 0, 0, 1)
    whole = terms.linear(100) + terms.head(1) + terms.write(100) + experts(100) + eager(100)
    assert cost.iteration(prompt) == pytest.approx(to_ticks(whole + prompt_table()(100, 5050)), abs=9)
    for each in (shape(4, 400), prompt):
        assert sum(cost.parts(each).values()) == pytest.approx(cost.iteration(each), abs=9)
    assert cost.parts(prompt)["experts"] == to_ticks(2e-3)


def test_layers_with_windows_and_states_are_priced_by_what_is_within_reach():
    cost = cost_of(windowed(), WINDOWED)
    whole, near = cost.iteration(shape(4, 4000)), cost.iteration(shape(4, 4000, (256,)))
    assert whole > near
    assert cost.parts(shape(4, 4000, (256,)))["window attention"] == pytest.approx(
        to_ticks(decode_table(0.5)(4, 256)), abs=300
    )
    prompt = IterationShape(1000, 1000, 1000, 0, 500_500, 0, 0, 0, 0, 1, reached_pairs=(62_000,))
    assert cost.parts(prompt)["window attention"] == to_ticks(prompt_table()(1000, 62_000))
    assert sum(cost.parts(prompt).values()) == pytest.approx(cost.iteration(prompt), abs=9)

    spec = replace(LLAMA, name="states", cached=(FullLayer(8, 128), StateLayer((3, 64), (8, 64))) * 16)
    states = StatesTerm(decode=Curve(at=(1, 11), seconds=(1e-3, 2e-3)), prefill=prompt_table())
    cost = cost_of(profile_of(spec, states=states), spec)
    assert cost.reaches == ()
    assert cost.decode_reached(6, 600, [])[0] == cost.iteration(shape(6, 600))
    assert cost.parts(shape(6, 600))["states"] == to_ticks(1.5e-3)
    two = IterationShape(200, 200, 200, 0, 10_100, 0, 0, 0, 0, 2, computed_prompts=2)
    assert cost.parts(two)["states"] == to_ticks(prompt_table().at(2, 100))


def test_a_profile_without_a_term_for_a_layer_is_refused():
    with pytest.raises(PagesimError, match="knows attention to all tokens only"):
        cost_of(profile_of(WINDOWED), WINDOWED)
    other = replace(WINDOWED, cached=(FullLayer(8, 128), WindowLayer(8, 128, 32)) * 16)
    with pytest.raises(PagesimError, match="knows attention to all tokens only"):
        cost_of(windowed(), other)


def test_any_block_size_will_do_and_moving_a_block_goes_with_it():
    profile = profile_of(LLAMA)
    assert profile.takes(16)
    assert profile.takes(1)
    moved = IterationShape(0, 0, 0, 0, 0, 8, 0, 0, 0, 0)
    small, large = (cost_of(profile, LLAMA, block_size=size).iteration(moved) for size in (16, 64))
    link = H100.host
    latency = to_ticks(link.latency_s)
    assert (large - latency) == pytest.approx(4 * (small - latency), rel=1e-6)
    assert not analytic_profile(H100, LLAMA).takes(64)


def test_bf16_and_fp16_are_caches_of_one_size_and_fp8_is_not():
    profile = profile_of(LLAMA)
    assert Profiled(profile, LLAMA, kv_dtype="fp16").iteration(shape(1, 100))
    with pytest.raises(PagesimError, match="kv_dtype bf16, not fp8"):
        Profiled(profile, LLAMA, kv_dtype="fp8")


def test_operators_know_no_engine_and_take_that_of_the_run(tmp_path: Path):
    profile_of(LLAMA).save(tmp_path / "p.json")
    assert load_profile(tmp_path / "p.json") == profile_of(LLAMA)
    target = {"model": LLAMA, "gpu": H100, "tp": 1, "block_size": 16, "kv_dtype": "bf16"}

    def ticks(text: str) -> int:
        engine = EngineTime(2e-3, 1e-4)
        return parse_cost(f"profile:{tmp_path / 'p.json'}{text}", engine=engine, **target).iteration(
            shape(5, 500)
        )

    bare = ticks(",overhead_s=0,sequence_s=0")
    assert ticks("") - bare == to_ticks(2e-3 + 5e-4)
    assert ticks(",overhead_s=0.001") - bare == to_ticks(1e-3 + 5e-4)
    assert ticks(",sequence_s=0") - bare == to_ticks(2e-3)


def test_tables_are_not_carried_to_another_model():
    with pytest.raises(PagesimError, match="rests on tables of operators; import them for opt-13b"):
        rescale(profile_of(LLAMA), LLAMA, H100, model=model("opt-13b"), gpu=H100, name="x")


def test_fast_forward_is_stepping_with_tables(tmp_path: Path):
    profile = windowed().model_copy(update={"model": Shape.of(model("gemma3-12b"))})
    spec = model("gemma3-12b")
    within = profile.terms.reaching[0].model_copy(update={"size": 1024})
    terms = profile.terms.model_copy(update={"reaching": (within,)})
    profile.model_copy(update={"terms": terms}).save(tmp_path / "p.json")
    rng = np.random.default_rng(5)
    trace = ps.Trace(
        np.round(np.cumsum(rng.exponential(0.05, 40)), 2), rng.integers(1, 300, 40), rng.integers(1, 200, 40)
    )
    options = {"model": spec.name, "gpu": "h100", "policy": "vllm-v1", "num_blocks": 400}
    runs = [
        ps.simulate(trace, cost=f"profile:{tmp_path / 'p.json'}", fast_forward=fast, **options)
        for fast in (True, False)
    ]
    fast, slow = (run.requests for run in runs)
    assert fast.equals(slow)
    assert runs[0].summary["sim"]["rows"] < runs[1].summary["sim"]["rows"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"batch": (2, 1, 8, 32)}, "its batch must rise"),
        ({"length": (4, 4, 64, 256)}, "its length must rise"),
        ({"batch": (1, 2)}, "must be 2 rows of 4"),
        ({"seconds": ((4.0, 3.0, 5.0, 6.0),) * 4}, "must not fall"),
    ],
)
def test_a_damaged_table_is_refused(change: dict[str, object], said: str):
    good = decode_table().model_dump()
    with pytest.raises(ValueError, match=said):
        DecodeTable(**{**good, **change})

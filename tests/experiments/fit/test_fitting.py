"""What a server's iterations take is found from its logs, and what these cannot tell is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pagesim import simulate
from pagesim.costs import Profiled, Target, parse_cost
from pagesim.costs.profiles import find_profile
from pagesim.errors import PagesimError
from pagesim.experiments.fit.costs import Coefficients, profile_of
from pagesim.experiments.fit.fitting import Fitted, fit
from pagesim.experiments.fit.iterations import reads_of
from pagesim.experiments.fit.result import comparisons, profile, report
from pagesim.experiments.recorded.recording import RecordedRun
from pagesim.hardware import gpu
from pagesim.models import model
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.prepare import prepare
from pagesim.setup.system import System
from pagesim.workloads.trace import Trace

from .conftest import AFFINE, CONTEXT_S, STEP_S, SYSTEM, TOKEN_S, cost_of, served

MODEL = model(SYSTEM.model)


@pytest.fixture(scope="module")
def of_three(affine_loads: list[RecordedRun]) -> Fitted:
    """Return the fit to three loads of an affine server."""
    return fit(affine_loads, SYSTEM)


def check(fitted: Fitted, **truth: float) -> None:
    """Each value must be within 2 % of the truth, or within two of the standard errors that are printed."""
    for column, true in truth.items():
        wrong = abs(fitted.value(column) - true)
        assert wrong <= max(0.02 * true, 2 * fitted.error(column)), (column, fitted.value(column), true)
        assert fitted.error(column) < true  # an error of everything would bound nothing


def test_coefficients_of_an_affine_server_come_back(of_three: Fitted) -> None:
    assert not of_three.notes
    # Its context includes the prompts' own.
    check(
        of_three,
        iterations=STEP_S,
        sequences=TOKEN_S,
        context=CONTEXT_S,
        prompt_tokens=TOKEN_S + CONTEXT_S,
    )
    assert of_three.value("prompts") <= 2 * of_three.error("prompts")


def test_a_load_above_every_of_three_one_is_predicted(of_three: Fitted) -> None:
    above = replace(served(96, cost_of(AFFINE), noise=0.0), name="above")
    found = report(of_three, comparisons(of_three, [above]))["errors"]["above, held out"]
    assert set(found) == {"ttft", "tpot", "e2e"}
    assert all(abs(each["error"]) < 0.05 for by in found.values() for each in by.values())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("release", ["0.11.2", "0.19.0"])
def test_standard_errors_are_honest_with_every_term(seed: int, release: str) -> None:
    truth = Coefficients(5e-3, 8e-5, 3e-8, 4e-5, 2e-3)
    system = SYSTEM.model_copy(update={"vllm_version": release})
    cost = Profiled(profile_of(truth, MODEL, tp=1, kv_dtype="fp16", block_size=16), MODEL)
    fitted = fit([served(many, cost, system=system, seed=seed) for many in (8, 24, 64)], system)
    off = (fitted.found.values[:5] - truth[:5]) / fitted.found.errors[:5]
    assert np.sqrt(np.mean(np.square(off))) < 2
    assert abs(off).max() < 3.5


@pytest.mark.parametrize("concurrencies", [(4, 16, 48), pytest.param((1, 4, 64), marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("name", "tp"), [("llama-3.1-8b", 1), pytest.param("mixtral-8x7b", 2, marks=pytest.mark.slow)]
)
def test_a_server_that_bends_over_its_tokens_is_bent(
    name: str, tp: int, concurrencies: tuple[int, ...]
) -> None:
    # Weights are read, or tokens computed, whichever takes longer; experts are touched, more by more tokens.
    system = SYSTEM.model_copy(update={"model": name, "tensor_parallel_size": tp})
    text = "roofline:overhead_s=8e-4,sequence_s=1.5e-5"
    cost = parse_cost(text, Target(model=model(name), gpu=gpu("h100"), tp=tp, block_size=16, kv_dtype="fp16"))
    fitted = fit([served(many, cost, system=system) for many in concurrencies], system)
    above = replace(served(96, cost, system=system, noise=0.0), name="above")
    found = report(fitted, comparisons(fitted, [above]))
    assert found["tokens"] is not None
    assert "prompt_token_s" not in found["values"]
    assert all(abs(by["mean"]["error"]) < 0.03 for by in found["errors"]["above, held out"].values())
    check(fitted, context=cost.decode(1, 1)[1] / 1e12)


@pytest.mark.slow
def test_nothing_bends_where_no_iteration_is() -> None:
    # Prompts run alone, and all are of 300 tokens: no iteration has 49 to 299 of them.
    fields = {"policy": "vllm-sosp", "model": "opt-13b", "gpu": "a100-80gb", "max_model_len": 2048}
    system = System(**fields)
    cost = cost_of("roofline:overhead_s=8e-4,sequence_s=1.5e-5", system)
    loads = [served(many, cost, system=system, lengths=(300, 100)) for many in (4, 16, 48)]
    fitted = fit(loads, system)
    above = replace(served(96, cost, system=system, noise=0.0, lengths=(300, 100)), name="above")
    found = report(fitted, comparisons(fitted, [above]))
    assert found["tokens"] is not None
    assert all(abs(by["mean"]["error"]) < 0.05 for by in found["errors"]["above, held out"].values())


def test_an_affine_server_is_not_bent_by_noise(of_three: Fitted) -> None:
    assert report(of_three, comparisons(of_three))["tokens"] is None


def test_one_load_alone_does_not_tell_a_sequence_from_its_context(affine_loads: list[RecordedRun]) -> None:
    fitted = fit(affine_loads[1:2], SYSTEM)
    assert "one load alone does not tell a time a sequence from a time a token of context" in fitted.notes[0]
    assert "the latter is that of the h100's datasheet" in fitted.notes[0]
    assert fitted.fixed["context"] == "datasheet"
    assert 0 < fitted.error("context") < np.inf
    made = profile(fitted, "mine", report(fitted, comparisons(fitted)))
    assert made.origins["decode"] == "datasheet"
    assert set(fitted.notes) <= set(made.notes)


def test_without_a_gpu_context_counts_with_the_sequences(affine_loads: list[RecordedRun]) -> None:
    fields = SYSTEM.model_dump(exclude_unset=True, exclude={"gpu"})
    fitted = fit(affine_loads[1:2], type(SYSTEM)(**fields))
    assert fitted.value("context") == 0
    assert "name the gpu" in fitted.notes[0]
    made = profile(fitted, "mine", report(fitted, comparisons(fitted)))
    assert any("copies and swaps of blocks take no time" in note for note in made.notes)


def test_swaps_are_those_of_the_datasheet(affine_loads: list[RecordedRun]) -> None:
    fitted = fit(affine_loads[1:2], SYSTEM)
    made = profile(fitted, "mine", report(fitted, comparisons(fitted)))
    assert made.terms.swap_out == find_profile("analytic-h100", model=MODEL).terms.swap_out
    assert made.origins["swap_out"] == "datasheet"


def test_loads_that_are_alike_tell_no_more_than_one(affine_loads: list[RecordedRun]) -> None:
    again = [served(16, cost_of(AFFINE), seed=seed, requests=60) for seed in (1, 2)]
    assert any("do not tell" in note for note in fit(again, SYSTEM).notes)


def test_a_front_end_adds_to_ttft_and_not_to_iterations() -> None:
    loads = [served(many, cost_of(AFFINE), front_end_s=0.015) for many in (4, 16, 48)]
    fitted = fit(loads, SYSTEM)
    check(fitted, iterations=STEP_S, front_end=0.015)


def test_first_requests_that_wait_for_compilation_are_left_out(affine_loads: list[RecordedRun]) -> None:
    def compiled(load: RecordedRun) -> RecordedRun:
        late = np.where(np.arange(len(load)) < 4, 8.0, 0.0)
        return replace(load, ttft_s=load.ttft_s + late, e2e_s=load.e2e_s + 2 * late)

    fitted = fit([compiled(load) for load in affine_loads], SYSTEM)
    check(fitted, iterations=STEP_S, prompt_tokens=TOKEN_S + CONTEXT_S)
    assert (~fitted.found.kept).sum() >= 12


def test_an_open_loop_is_fitted_by_its_arrivals() -> None:
    loads = [served(None, cost_of(AFFINE), rate=rate, requests=120) for rate in (1.0, 4.0, 8.0)]
    check(fit(loads, SYSTEM), iterations=STEP_S, prompt_tokens=TOKEN_S + CONTEXT_S)


def test_first_requests_predict_the_others() -> None:
    load = served(None, cost_of(AFFINE), rate=4.0)
    fitted = fit([load], SYSTEM, first=200)
    assert fitted.found.rows.seconds.size <= 400
    others = report(fitted, comparisons(fitted))["errors"]["4/s, others"]
    assert all(abs(by["mean"]["error"]) < 0.05 for by in others.values())


def test_a_fitted_profile_is_a_cost(
    of_three: Fitted, affine_loads: list[RecordedRun], tmp_path: Path
) -> None:
    made = profile(of_three, "mine", report(of_three, comparisons(of_three)))
    made.save(tmp_path / "mine.json")
    options = SYSTEM.model_dump(exclude_unset=True, exclude={"policy"})
    result = simulate(
        affine_loads[0].trace(),
        "vllm-v1",
        cost=f"profile:{tmp_path / 'mine.json'}",
        max_concurrency=4,
        **options,
    )
    measured = affine_loads[0].e2e_s.mean()
    assert (
        abs(np.mean(result.request_columns["finish_s"] - result.request_columns["arrival_s"]) / measured - 1)
        < 0.02
    )
    assert any("beyond these it is extrapolated" in note for note in made.notes)


def test_requests_of_one_length_leave_wide_errors_that_are_right() -> None:
    loads = [served(many, cost_of(AFFINE), lengths=(512, 128)) for many in (4, 16, 48)]
    fitted = fit(loads, SYSTEM)
    for column, true in {"iterations": STEP_S, "sequences": TOKEN_S, "context": CONTEXT_S}.items():
        wrong = abs(fitted.value(column) - true)
        assert wrong <= max(0.02 * true, 2 * fitted.error(column)), (column, fitted.value(column), true)
    above = replace(served(96, cost_of(AFFINE), noise=0.0, lengths=(512, 128)), name="above")
    found = report(fitted, comparisons(fitted, [above]))["errors"]["above, held out"]
    assert all(abs(by["mean"]["error"]) < 0.05 for by in found.values())


def test_a_load_that_contradicts_the_others_is_named() -> None:
    *alike, odd = (served(many, cost_of(AFFINE), requests=100) for many in (4, 16, 32, 40, 48))
    halved = replace(odd, e2e_s=odd.ttft_s + (odd.e2e_s - odd.ttft_s) / 2)
    notes = fit([*alike, halved], SYSTEM).notes
    assert any(note.startswith("48 at once: its requests took 0.5") for note in notes), notes
    assert not any(note.startswith("16 at once") for note in notes)


def test_nothing_is_fitted_to_no_log() -> None:
    with pytest.raises(PagesimError, match="give at least one"):
        fit([], SYSTEM)


def test_a_server_that_answers_nothing_is_refused(affine_loads: list[RecordedRun]) -> None:
    small = SYSTEM.model_copy(update={"max_model_len": 16})
    with pytest.raises(PagesimError, match="look at the server's settings"):
        fit(affine_loads[:1], small)


@pytest.mark.parametrize("name", ["gpt-oss-20b", pytest.param("qwen3-next-80b-fp8", marks=pytest.mark.slow)])
def test_windows_and_states_share_one_time_a_token_of_context(name: str) -> None:
    # A server whose layers take by what they read: of long contexts, those with a window read 128 tokens.
    system = SYSTEM.model_copy(update={"model": name, "vllm_version": "0.33.0", "gpu": "h200"})
    config = EngineConfig(system)
    truth = Coefficients(5e-3, 8e-5, 6e-8, 4e-5)
    block_size = prepare(
        system, Trace(np.zeros(1), np.ones(1, int), np.ones(1, int))
    ).config.capacity.block_size
    made = profile_of(truth, config.model, tp=1, kv_dtype=config.kv_dtype, block_size=block_size)
    cost = Profiled(made, config.model, block_size=block_size, kv_dtype=config.kv_dtype)
    loads = [served(many, cost, system=system, requests=50) for many in (4, 16, 48)]
    fitted = fit(loads, system)
    check(fitted, iterations=5e-3, sequences=8e-5, context=6e-8, prompt_tokens=4e-5)
    found = profile(fitted, "mine", report(fitted, comparisons(fitted)))
    assert found.terms.reached.keys() == made.terms.reached.keys()
    assert (found.terms.states is None) == (not config.model.state_layers)


def test_layers_share_a_time_by_what_they_read() -> None:
    # 12 layers look back on all tokens, 12 on 128; all have 8 heads of 64 elements.
    shares = reads_of(model("gpt-oss-20b"), "bf16", 1)
    assert {span and (span.kind, span.size): tuple(each) for span, each in shares.items()} == {
        None: (0.5, 0.5),
        ("window", 128): (0.5, 0.5),
    }
    assert list(reads_of(MODEL, "bf16", 1).values()) == [(1, 1)]

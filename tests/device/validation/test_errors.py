"""Errors that are reported are those that there are: live is replaced by a replay of known predictions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pagesim as ps
from pagesim.api import run
from pagesim.costs import IterationShape, Profiled, Target, parse_cost
from pagesim.costs.profiles import Profile, analytic_profile
from pagesim.costs.table import Table
from pagesim.device.validation import Case, Iterations, kind_of, validate
from pagesim.hardware import gpu
from pagesim.models import model
from pagesim.setup.system import System, checked
from pagesim.sim.executor import PredictedExecutor

TINY = model("tiny")
POLICIES = ("vllm-sosp", "vllm-v0", "vllm-v1")


def scaled(profile: Profile, factor: float) -> Profile:
    """Return a profile by which everything takes so many times as long."""

    def one(term: Any) -> Any:
        return term.scaled(factor) if isinstance(term, Table) else term

    terms = profile.terms
    update = {
        name: {size: one(each) for size, each in value.items()} if isinstance(value, dict) else one(value)
        for name, value in terms
    }
    return profile.model_copy(update={"terms": terms.model_copy(update=update)})


@pytest.fixture
def trace() -> ps.Trace:
    random = np.random.default_rng(5)
    return ps.Trace(np.zeros(30), random.integers(20, 300, 30), random.integers(5, 60, 30))


@pytest.fixture
def cases(tmp_path: Path, trace: ps.Trace) -> Callable[..., dict[str, Case]]:
    """Return a function that validates a profile against a live run that takes ``truth`` to be true."""
    true = analytic_profile(gpu("h200"), TINY).with_overhead(0.003)

    def validated(factor: float, **options: Any) -> dict[str, Case]:
        true.save(tmp_path / "true.json")
        scaled(true, factor).save(tmp_path / "held.json")

        def live(system: System, trace: ps.Trace, *, check: bool, observers: Any) -> ps.Result:
            truth = parse_cost(
                f"profile:{tmp_path / 'true.json'}",
                Target(model=TINY, gpu=gpu("h200"), tp=1, block_size=16, kv_dtype="fp16",
            ))  # fmt: skip
            result = run(
                system, trace, executor=lambda *_: PredictedExecutor(truth), observers=observers, steps="none"
            )
            return replace(result, summary={**result.summary, "live": {}})

        system = checked(
            System,
            {"model": "tiny", "num_blocks": 60, "cost": f"profile:{tmp_path / 'held.json'}", **options},
        )
        return {case.name: case for case in validate(system, trace, policies=POLICIES, live=live)}

    return validated


def test_a_profile_that_is_right_has_no_error(cases):
    found = cases(1.0)
    assert len(found) == 5
    kinds = set()
    for case in found.values():
        report = case.report()
        assert case.iterations.predicted_s == case.iterations.measured_s
        for kind, each in report["same_schedule"].items():
            kinds.add(kind)
            assert (each["signed"], each["absolute"], each["total"]) == (0, 0, 0)
        assert set(report["end_to_end"]) == {"normalized_latency", "ttft", "tpot", "latency", "duration"}
        for metric, by in report["end_to_end"].items():
            assert len(by) == (1 if metric == "duration" else 5)
            for each in by.values():
                assert each["error"] == pytest.approx(0, abs=1e-9), metric
        assert report["preemptions"]["live"] == report["preemptions"]["simulated"]
        assert sum(report["preemptions"]["live"].values()) > 0
    assert kinds == {"prefill", "decode", "mixed", "with swap", "all"}


@pytest.mark.slow_but("0.8")
@pytest.mark.parametrize("factor", [0.8, 1.25])
def test_a_profile_that_is_wrong_by_a_factor_is_reported_as_wrong_by_that_factor(cases, factor):
    for case in cases(factor).values():
        report = case.report()
        for each in report["same_schedule"].values():
            assert each["signed"] == pytest.approx(factor - 1, rel=1e-6)
            assert each["absolute"] == pytest.approx(abs(factor - 1), rel=1e-6)
            assert each["total"] == pytest.approx(factor - 1, rel=1e-6)
        for metric, by in report["end_to_end"].items():
            for each in by.values():
                assert each["error"] == pytest.approx(factor - 1, rel=1e-6, abs=1e-9), metric
        assert report["batch"]["simulated"] == pytest.approx(report["batch"]["live"])


def test_a_term_that_is_wrong_shows_in_the_iterations_that_have_it(cases, monkeypatch):
    right = Profiled.iteration

    def slow_prompts(cost: Profiled, shape: IterationShape) -> int:
        return right(cost, shape) * (2 if shape.query_key_pairs and cost is held.get("cost") else 1)

    held: dict[str, Profiled] = {}
    heard = Iterations.planned

    def hear(iterations: Iterations, *event: Any) -> None:
        held["cost"] = iterations.cost
        heard(iterations, *event)

    monkeypatch.setattr(Profiled, "iteration", slow_prompts)
    monkeypatch.setattr(Iterations, "planned", hear)
    report = cases(1.0)["vllm-v0, recompute"].report()["same_schedule"]
    assert report["prefill"]["signed"] == pytest.approx(1)
    assert report["decode"]["signed"] == 0


@pytest.mark.parametrize(
    ("tokens", "decoding", "out", "kind"),
    [
        (40, 0, 0, "prefill"),
        (8, 8, 0, "decode"),
        (40, 8, 0, "mixed"),
        (40, 8, 2, "with swap"),
        (0, 0, 3, "with swap"),
    ],
)
def test_kinds(tokens, decoding, out, kind):
    assert kind_of(IterationShape(tokens, tokens, 0, 0, 0, out, 0, 0, decoding, decoding)) == kind


def test_a_policy_without_a_choice_of_preemption_runs_once(trace):
    def live(system: System, trace: ps.Trace, *, check: bool, observers: Any) -> ps.Result:
        result = run(system, trace, observers=observers, steps="none")
        return replace(result, summary={**result.summary, "live": {}})

    system = checked(System, {"model": "tiny", "num_blocks": 60, "async_scheduling": False})
    (case,) = validate(system, trace, policies=["vllm-v1"], live=live)
    assert (case.name, case.preemption) == ("vllm-v1", "default")
    # All but the last, which computes nothing: it tells the workers who has ended.
    assert len(case.iterations.kinds) == case.live.summary["iterations"] - 1

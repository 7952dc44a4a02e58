"""Half of the runs tell an engine's numbers, and the other half whether they were right."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from pagesim.costs import EngineTime
from pagesim.errors import PagesimError
from pagesim.experiments.recorded.closed_loop_table import read
from tests.pages import module_of

PAGE = module_of("docs/make_accuracy.py")
Case, Means, MeasuredRun = PAGE.Case, PAGE.Means, PAGE.MeasuredRun
cases, predicted, summed = PAGE.cases, PAGE.predicted, PAGE.summed

HEAD = "model,system,dtype,release,isl,osl,concurrency,tp,ep,ttft_ms,tpot_ms,note\n"
TRUE = EngineTime(1.1e-3, 3e-5)


@pytest.fixture
def runs(tmp_path: Path):
    """Return a function that reads rows as recorded runs."""

    def of(*rows: str):
        file = tmp_path / "runs.csv"
        file.write_text(HEAD + "".join(f"{row}\n" for row in rows))
        return read(file)

    return of


def linear(run, *, kernels_s: float = 0.01, frontend_s: float = 0.02, engine: EngineTime = TRUE) -> Case:
    """Return a run of a server whose time per output token is a sum, and its simulation."""

    def simulate(own: EngineTime) -> Means:
        clients = run.max_concurrency
        return Means(kernels_s + own.iteration_s + own.sequence_s * clients, 0.05)

    took = simulate(engine)
    measured = MeasuredRun(run.name, Means(took.tpot_s, took.ttft_s + frontend_s), simulate)
    return Case(run, str(run.server["vllm_version"]), False, measured)


def loads(release: str = "0.12.0", tp: int = 1) -> list[str]:
    return [
        f"Qwen/Qwen3-32B,h100_sxm,bf16,{release},{isl},512,{clients},{tp},1,90,9,"
        for isl in range(1000, 3000, 100)
        for clients in (8, 64)
    ]


def test_the_other_half_is_predicted_by_the_numbers_of_the_first(runs):
    found = [linear(run) for run in runs(*loads())]
    rows = pd.DataFrame(predicted(found))
    assert 0 < len(rows) < len(found), "no run is predicted that was fitted"
    fitted = {case.run.name for case in found if case.fitted}
    assert not fitted & set(rows["run"])
    assert rows["tpot_error"].abs().max() < 1e-6
    assert rows["ttft_error"].abs().max() < 1e-6
    assert rows["iteration_ms"].unique() == pytest.approx([1.1])
    assert rows["sequence_us"].unique() == pytest.approx([30])
    assert rows["frontend_ms"].unique() == pytest.approx([20])


def test_runs_that_differ_in_their_load_alone_are_of_one_half(runs):
    by_lengths: dict[str, set[bool]] = {}
    for case in (linear(run) for run in runs(*loads())):
        by_lengths.setdefault(case.run.name.split()[-2], set()).add(case.fitted)
    assert all(len(halves) == 1 for halves in by_lengths.values())
    assert set().union(*by_lengths.values()) == {False, True}


def test_each_release_has_numbers_of_its_own(runs):
    slow = EngineTime(4e-3, 1e-4)
    found = [linear(run) for run in runs(*loads())]
    found += [linear(run, engine=slow) for run in runs(*loads("0.15.1"))]
    rows = pd.DataFrame(predicted(found)).groupby("release")["iteration_ms"].mean()
    assert rows.to_dict() == pytest.approx({"0.12.0": 1.1, "0.15.1": 4.0})


def test_errors_are_summed_in_percent():
    rows = pd.DataFrame(
        {"run": ["a", "b"], "kind": "dense", "tpot_error": [0.1, -0.3], "ttft_error": [0.2, 0.4]}
    )
    row = summed(rows, ["kind"]).loc["dense"]
    assert row.to_dict() == pytest.approx(
        {"runs": 2, "tpot_mean_abs": 20, "tpot_bias": -10, "ttft_median_abs": 30, "ttft_bias": 30}
    )


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (
            "nvidia/Llama-3.1-8B-Instruct-FP8,h200_sxm,fp8,0.12.0,2000,100,16,1,1,90,9,",
            "faster than the oper",
        ),
        ("Qwen/Qwen3-235B-A22B-FP8,h200_sxm,fp8,0.12.0,2000,100,16,2,1,90,9,", "on how many GPUs it ran"),
        ("Qwen/Qwen3-32B,h100_sxm,fp8,0.12.0,2000,100,16,1,0,90,9,", "ep 0 is no degree"),
        ("who/knows,h100_sxm,bf16,0.12.0,2000,100,16,1,1,90,9,", "is not in the catalogue"),
    ],
)
def test_a_run_that_cannot_be_simulated_is_left_out_with_the_reason(runs, tmp_path, row, why):
    class Absent(PAGE.Operators):
        def file(self, *_: object) -> Path:
            raise PagesimError("no table")

    found, left_out = cases(runs(row), Absent(tmp_path, None))
    assert not found
    (reason,) = left_out.values()
    assert why in reason

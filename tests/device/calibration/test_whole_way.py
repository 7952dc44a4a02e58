"""Calibrate, look at the profile, simulate, run live, validate: the whole way on a CPU, really measured."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import pandas as pd  # noqa: E402

import pagesim as ps  # noqa: E402
from pagesim.costs.profiles import EVERYWHERE, load_profile  # noqa: E402
from tests.device.calibration.test_points import LATENT, WINDOWS  # noqa: E402

LOAD = (
    "--model", "tiny", "--num-blocks", "40", "--trace", "fixed:60,20", "--num-requests", "12",
    "--arrivals", "all-at-once",
)  # fmt: skip


@pytest.fixture
def command(succeeds, monkeypatch):
    """Return a function that runs ``pagesim``, expects it to end well, and returns what it prints."""
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: succeeds(*arguments).out


def numbers(value: object) -> list[float]:
    """Return every number in something that JSON can hold."""
    if isinstance(value, dict):
        return [number for each in value.values() for number in numbers(each)]
    if isinstance(value, list):
        return [number for each in value for number in numbers(each)]
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else []


def whole_way(command, folder: Path, *how: str) -> None:
    profile, out = folder / "mine.json", folder / "out"
    shown = command("calibrate", "--device", "cpu", "--model", "tiny", *how, profile)
    assert f"written to {profile}" in shown
    made = load_profile(profile)
    assert made.kind == "measured"
    assert {sample.term for sample in made.samples} == {*EVERYWHERE, "overhead"}
    assert all(sample.seconds > 0 for sample in made.samples)
    assert all(math.isfinite(number) and number >= 0 for number in numbers(made.terms.model_dump()))
    assert all(math.isfinite(error.mean) for error in made.errors.values())
    assert "overhead" in command("profile", "show", profile)

    command("run", *LOAD, "--cost", f"profile:{profile},max_error=inf", "--out", folder / "run")
    assert ps.load(folder / "run").summary["requests"]["finished"] == 12

    shown = command(
        "validate", "--live", *LOAD, "--device", "cpu", "--profile", profile,
        "--policies", "vllm-sosp,vllm-v1",
        "--out", out,
    )  # fmt: skip
    assert shown.count("all within 0.001") == 3
    report = json.loads((out / "summary.json").read_text())
    assert [(case["policy"], case["preemption"]) for case in report["cases"]] == [
        ("vllm-sosp", "recompute"),
        ("vllm-v1", "default"),
        ("vllm-sosp", "swap"),
    ]
    for case in report["cases"]:
        assert all(math.isfinite(number) for number in numbers(case))
        assert case["check"]["passed"]
        for each in case["same_schedule"].values():
            assert each["mean_s"] > 0
            assert each["absolute"] >= abs(each["signed"]) - 1e-12
        for each in (each for by in case["end_to_end"].values() for each in by.values()):
            assert each["measured_s"] > 0
            assert each["simulated_s"] > 0
    assert report["cases"][2]["same_schedule"]["with swap"]["iterations"] > 0
    iterations = pd.read_parquet(out / "iterations.parquet")
    assert (iterations[["measured_s", "predicted_s"]] > 0).all(axis=None)
    assert {file.name for file in out.iterdir()} >= {"validation.png", "validation.svg", "profile.json"}
    # What is stored can be run again from its folder, and replaced.
    command("validate", "--live", *LOAD, "--device", "cpu", "--profile", out / "profile.json",
            "--policies", "vllm-v1", "--preemptions", "default", "--no-check", "--out", out)  # fmt: skip
    assert len(json.loads((out / "summary.json").read_text())["cases"]) == 1


@pytest.mark.slow
def test_the_whole_way(command, tmp_path):
    whole_way(command, tmp_path, "--quick")


SYSTEMS = {
    "drafts over two GPUs, an fp8 cache": (
        "--serve", "vllm serve tiny --tensor-parallel-size 2 --kv-cache-dtype fp8", "--gpu", "h100",
        "--speculative-method", "ngram", "--speculative-tokens", "3", "--acceptance", "0.5",
    ),
    "windows": ("--model", "windows.json"),
    "latent": ("--model", "latent.json", "--gpu", "h100"),
}  # fmt: skip


@pytest.mark.slow_but("windows")
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_system_is_calibrated_and_run_with_the_same_flags(
    system, command, succeeds, tmp_path, small_grid, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("windows.json").write_text(json.dumps(WINDOWS))
    Path("latent.json").write_text(json.dumps(LATENT))
    flags, profile = SYSTEMS[system], tmp_path / "mine.json"
    shown = command("calibrate", "--device", "cpu", "--seconds", "0.001", *flags, profile)
    made = load_profile(profile)
    assert set(made.ranges) == {sample.term for sample in made.samples} == set(made.errors)
    assert all(error.median is not None and error.worst >= error.median for error in made.errors.values())
    assert (made.queries, made.kv_dtype) == ((4, "fp8") if "drafts" in system else (1, "fp16"))
    datasheet = {term for term, origin in made.origins.items() if origin == "datasheet"}
    assert datasheet == {"drafts over two GPUs, an fp8 cache": {"all_reduce"}, "windows": set()}.get(
        system, {"experts"}
    )
    for operator in made.errors:
        assert operator in shown
    done = succeeds(
        "run", *flags, "--trace", "fixed:60,20", "--num-requests", "12", "--arrivals", "all-at-once",
        "--num-blocks", "400", "--cost", f"profile:{profile},max_error=inf", "--json",
    )  # fmt: skip
    assert json.loads(done.out)["requests"]["finished"] == 12
    assert sum("errors on held-out points" in line for line in done.err.splitlines()) == 1


@pytest.mark.slow
def test_validate_calibrates_first_where_no_profile_is_given(command, small_grid):
    shown = command("validate", "--live", *LOAD, "--device", "cpu", "--policies", "vllm-v0",
                    "--preemptions", "swap", "--no-check", "--json")  # fmt: skip
    report = json.loads(shown)
    assert (report["profile"], report["kind"]) == ("calibrated", "measured")
    assert report["cases"][0]["check"] is None

"""Closed loops on the command line: run, stored scenario, compare, cluster, sweep, capacity, report."""

from __future__ import annotations

import tomllib

import pandas as pd
import pytest

LOAD = ("--trace", "fixed:200,50", "--num-requests", "30", "--cost", "affine:0.02,1e-4,1e-6")
TURNS = (
    "request_id,prompt_tokens,output_tokens,session_id,think_s\n"
    "a,10,5,1,\nb,8,3,2,\nc,20,5,1,1.5\nd,30,5,1,0.25\n"
)


@pytest.fixture
def turns(tmp_path):
    file = tmp_path / "turns.csv"
    file.write_text(TURNS)
    return file


def test_the_flags_of_vllm_bench_serve_are_taken_and_stored(succeeds, tmp_path):
    flags = ("--request-rate", "inf", "--max-concurrency", "4")
    first = succeeds("run", *LOAD, *flags, "--policy", "vllm-v1", "--out", tmp_path / "out", "--json")
    scenario = tmp_path / "out" / "scenario.toml"
    stored = tomllib.loads(scenario.read_text())
    assert (stored["rate"], stored["max_concurrency"]) == (float("inf"), 4)
    requests = pd.read_parquet(tmp_path / "out" / "requests.parquet")
    assert (requests["due_s"] == 0).all()
    assert (requests["arrival_s"] > 0).sum() == 26
    again = succeeds("run", scenario, "--json").json
    assert {**again, "sim": None} == {**first.json, "sim": None}
    succeeds("report", tmp_path / "out", "--out", tmp_path / "page.html")


def test_turns_after_completion_are_sent_one_by_one(succeeds, turns, tmp_path):
    flags = ("--turns", "after-completion", "--cost", "affine:1,0,0", "--out", tmp_path / "out")
    succeeds("run", "--trace", turns, *flags)
    requests = pd.read_parquet(tmp_path / "out" / "requests.parquet").set_index("request_id")
    assert requests["arrival_s"].to_dict() == {"a": 0.0, "b": 0.0, "c": 6.5, "d": 11.75}
    succeeds("run", "--trace", turns, *flags, "--think", "3")
    requests = pd.read_parquet(tmp_path / "out" / "requests.parquet").set_index("request_id")
    assert requests["arrival_s"].to_dict() == {"a": 0.0, "b": 0.0, "c": 8.0, "d": 16.0}


def test_a_run_that_ends_before_all_is_sent_is_stored_reported_and_drawn(succeeds, tmp_path):
    flags = ("--max-concurrency", "2", "--until", "3", "--trace-events", "--out", tmp_path / "out")
    succeeds("run", *LOAD, *flags)
    assert pd.read_parquet(tmp_path / "out" / "requests.parquet")["arrival_s"].isna().sum() > 20
    succeeds("report", tmp_path / "out", "--out", tmp_path / "page.html")


def test_a_comparison_bounds_every_policy_and_a_cluster_all_replicas(succeeds):
    compared = succeeds(
        "run", *LOAD, "--max-concurrency", "3", "--policies", "static,vllm-sosp", "--json"
    ).json
    assert all(own["batch"]["mean"] <= 3 for own in compared["runs"].values())
    flags = ("--policy", "vllm-sosp", "--max-concurrency", "3", "--replicas", "3")
    flags += ("--router", "least-loaded", "--json")
    together = succeeds("run", *LOAD, *flags).json
    assert together["requests"]["finished"] == 30
    assert together["batch"]["mean"] == 1.0


def test_concurrency_is_an_axis_of_a_sweep_and_so_is_the_infinite_rate(succeeds, tmp_path):
    grid = ("--grid", "max_concurrency=1,4", "--grid", "rate=1,inf", "--jobs", "1")
    succeeds("sweep", *LOAD, *grid, "--out", tmp_path / "out")
    runs = pd.read_parquet(tmp_path / "out" / "runs.parquet")
    assert runs[["max_concurrency", "rate"]].values.tolist() == [
        [1, 1],
        [1, float("inf")],
        [4, 1],
        [4, float("inf")],
    ]
    at_once = runs[runs["rate"] > 1]["throughput.requests_per_s"].tolist()
    assert at_once[1] > 3 * at_once[0]
    before = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "out" / "runs").iterdir()}
    succeeds("sweep", tmp_path / "out" / "sweep.toml", "--out", tmp_path / "out")
    assert {file.name: file.stat().st_mtime_ns for file in (tmp_path / "out" / "runs").iterdir()} == before


def test_capacity_finds_the_concurrency(succeeds, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    flags = ("--slo", "mean_latency<=1.2s", "--find", "max-concurrency", "--policies", "orca-oracle,vllm-v1")
    out = succeeds("sweep", "--find", "rate", *LOAD, *flags, "--jobs", "1", "--out", tmp_path / "out").out
    assert "Most outstanding requests at which the goal is kept" in out
    rates = pd.read_parquet(tmp_path / "out" / "capacity.parquet")
    assert list(rates.columns) == ["policy", "max_concurrency", "fails_at", "verdict", "latency.mean"]
    assert rates["verdict"].tolist() == ["found", "found"]
    assert (rates["fails_at"] == rates["max_concurrency"] + 1).all()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--max-concurrency", "0"), "max_concurrency is 0: "),
        (("--turns", "after-completion"), "turns after-completion need sessions; fixed:200,50"),
        (("--rate", "nan"), "rate is nan: "),
    ],
)
def test_what_makes_no_closed_loop_is_refused_in_a_sentence(flags, said, refused):
    # What does not go together otherwise is refused by the workloads: tests/workloads/test_thinking.py.
    assert refused("run", *LOAD, *flags).startswith(said)

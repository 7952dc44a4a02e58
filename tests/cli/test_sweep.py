"""``pagesim sweep`` and ``pagesim sweep --find``: files, flags, figures, and what is refused."""

from __future__ import annotations

import re

import pandas as pd
import pytest

GRID = ("--grid", "policy=orca-max,vllm-sosp", "--grid", "rate=1,4")
LOAD = ("--num-requests", "20", "--num-blocks", "300", "--jobs", "1")
FILE = """
num_requests = 20
num_blocks = 300
seeds = 2

[grid]
policy = ["orca-max", "vllm-sosp"]
rate = [1, 4]
"""


def tables(folder):
    return {name: (folder / f"{name}.parquet").read_bytes() for name in ("runs", "means")}


def test_flags_and_a_file_make_the_same_sweep(succeeds, tmp_path):
    succeeds("sweep", *GRID, *LOAD, "--seeds", "2", "--out", tmp_path / "flags")
    (tmp_path / "s.toml").write_text(FILE)
    succeeds("sweep", tmp_path / "s.toml", "--jobs", "1", "--out", tmp_path / "file")
    succeeds("sweep", tmp_path / "file" / "sweep.toml", "--jobs", "1", "--out", tmp_path / "stored")
    assert tables(tmp_path / "flags") == tables(tmp_path / "file") == tables(tmp_path / "stored")
    assert len(pd.read_parquet(tmp_path / "file" / "runs.parquet")) == 2 * 2 * 2


def test_a_flag_wins_over_the_file(succeeds, tmp_path):
    (tmp_path / "s.toml").write_text(FILE)
    flags = ("--grid", "rate=2", "--seeds", "1", "--num-requests", "5", "--jobs", "1")
    succeeds("sweep", tmp_path / "s.toml", *flags, "--out", tmp_path / "out")
    runs = pd.read_parquet(tmp_path / "out" / "runs.parquet")
    assert runs[["policy", "rate", "num_requests"]].values.tolist() == [["vllm-v1", 2.0, 5]]


def test_a_trace_in_the_grid_may_lie_beside_the_file(succeeds, tmp_path, monkeypatch, trace_file):
    trace_file("a,0,10,10\n", "one.csv")
    trace_file("a,0,10,10\nb,0,10,10\n", "two.csv")
    (tmp_path / "s.toml").write_text('[grid]\ntrace = ["one.csv", "two.csv"]\n')
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    succeeds("sweep", "../s.toml", "--jobs", "2", "--out", "out")
    runs = pd.read_parquet("out/runs.parquet")
    assert runs["requests.total"].tolist() == [1, 2]
    assert runs["trace"].tolist() == [str(tmp_path / "one.csv"), str(tmp_path / "two.csv")]


def test_the_points_are_printed_with_their_confidence(succeeds, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    out = succeeds("sweep", *GRID, *LOAD, "--seeds", "3").out
    assert "8 of 8" not in out
    assert "12 of 12 runs done" in out
    assert sum("±" in line for line in out.splitlines()) == 4
    assert "stored" not in out


@pytest.mark.slow
def test_figures_are_drawn_and_have_the_same_bytes_each_time(succeeds, tmp_path):
    figure = ("--x", "rate", "--y", "ttft.p99", "--y", "batch.mean", "--hue", "policy")
    seen = []
    for name in ("a", "b"):
        succeeds("sweep", *GRID, *LOAD, *figure, "--out", tmp_path / name)
        files = [f for f in sorted((tmp_path / name).iterdir()) if f.suffix in (".png", ".svg")]
        seen.append({file.name: file.read_bytes() for file in files})
    assert seen[0] == seen[1]
    assert sorted(seen[0]) == [
        *("batch_mean_by_rate.png", "batch_mean_by_rate.svg"),
        *("ttft_p99_by_rate.png", "ttft_p99_by_rate.svg"),
    ]


def test_a_sweep_with_failed_runs_says_so_and_ends_with_1(cli, tmp_path):
    flags = ("--trace", "fixed:600,10", "--num-requests", "5", "--strict-compat", "--jobs", "1")
    outcome = cli("sweep", *flags, "--grid", "num_blocks=20,300", "--out", tmp_path / "out")
    assert outcome.code == 1
    assert "1 of 2 runs done" in outcome.out
    assert "1 failed: strict_compat: " in outcome.out
    assert pd.read_parquet(tmp_path / "out" / "runs.parquet")["status"].tolist() == ["failed", "done"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--grid", "rat=1"), "grid: there is no option rat; did you mean rate?"),
        (("--x", "rate"), "a figure needs --x and --y"),
        (("--hue", "rate"), "a figure needs --x and --y"),
        (("--grid", "rate=1,2", "--x", "rate", "--y", "ttft.p99"), "a figure needs --out"),
        (
            ("--grid", "rate=1,2", "--x", "rate", "--y", "p99", "--out", "o"),
            "y is 'p99'; it must be a metric",
        ),
    ],
)
def test_a_sweep_that_is_off_is_refused_before_anything_runs(arguments, said, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refused("sweep", *arguments).startswith(said)
    assert list(tmp_path.iterdir()) == []


def test_a_capacity_is_printed_drawn_and_stored(succeeds, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    flags = ("--slo", "p99_ttft<=2s", "--slo", "tpot<=50ms", "--policies", "orca-max,vllm-sosp")
    search = (
        "sweep",
        "--find",
        "rate",
        *flags,
        "--num-requests",
        "60",
        "--jobs",
        "2",
        "--out",
        tmp_path / "out",
    )
    out = succeeds(*search).out
    rates = pd.read_parquet(tmp_path / "out" / "capacity.parquet")
    assert list(rates.columns) == ["policy", "rate", "fails_at", "verdict", "ttft.p99", "tpot.mean"]
    for row in rates.itertuples():
        assert f" {row.policy} " in out
        assert f" {row.rate:.4g} " in out
    drawn = {name: (tmp_path / "out" / name).read_bytes() for name in ("capacity.png", "capacity.svg")}
    assert succeeds(*search).out == out
    assert {name: (tmp_path / "out" / name).read_bytes() for name in drawn} == drawn


@pytest.mark.parametrize(
    ("system", "policy"),
    [
        ((), "vllm-v1"),
        (("--policy", "vllm-sosp"), "vllm-sosp"),
        (("--gpu", "h100", "--serve", "sglang serve meta-llama/Llama-3.1-8B-Instruct"), "sglang"),
    ],
)
def test_a_search_is_of_one_policy_unless_several_are_named(succeeds, system, policy):
    load = ("--trace", "fixed:100,10", "--num-requests", "20", "--highest", "2")
    out = succeeds("sweep", "--find", "rate", "--slo", "latency<=100s", *load, *system).out
    rows = [line.split()[0] for line in out.splitlines() if re.match(r"  [a-z]+(-\w+)* +\d", line)]
    assert rows == [policy]


def test_a_served_line_goes_with_a_grid(succeeds):
    line = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-num-seqs 64"
    load = ("--trace", "fixed:100,10", "--num-requests", "20", "--rate", "5")
    said = succeeds("sweep", "--grid", "seed=1,2", "--gpu", "h100", "--serve", line, *load)
    assert "2 of 2 runs done" in said.out
    assert "max_num_seqs" not in said.err, "the default is not taken"


def test_a_capacity_without_an_answer_says_why(succeeds, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    flags = ("--policies", "vllm-sosp", "--num-requests", "20", "--jobs", "1")
    assert "fails at the lowest rate" in succeeds("sweep", "--find", "rate", "--slo", "ttft<=1ms", *flags).out
    bounds = ("--lowest", "1", "--highest", "2")
    assert (
        "holds at the highest rate"
        in succeeds("sweep", "--find", "rate", "--slo", "ttft<=9s", *flags, *bounds).out
    )
    out = succeeds("sweep", "--find", "rate", "--slo", "ttft<=9s", *flags, "--client-timeout", "0.5").out
    assert "vllm-sosp: 20 requests got no answer, so the goal is not kept there" in out


def test_a_search_that_is_off_is_refused(refused):
    said = refused("sweep", "--find", "rate", "--slo", "p99_tfft<=2")
    assert said.startswith("goal 'p99_tfft<=2': the latency tfft is unknown")


def test_what_was_assumed_is_said_and_kept(succeeds, tmp_path, trace_file):
    unsorted = trace_file("a,5,10,10\nb,1,10,10\n")
    outcome = succeeds("sweep", "--trace", unsorted, "--jobs", "1", "--out", tmp_path / "out")
    assert outcome.err.count("have been sorted") == 1
    assert "have been sorted" in pd.read_parquet(tmp_path / "out" / "runs.parquet")["notes"][0]


def test_notes_that_differ_in_their_numbers_are_said_once(succeeds):
    said = succeeds("sweep", "--grid", "rate=1,2,4", *LOAD, "--policy", "vllm-sosp").err.splitlines()
    (arrivals,) = [line for line in said if line.startswith("note: arrivals")]
    assert arrivals == (
        "note: arrivals: poisson, rate 1, num_requests 20, seed 0 (and 2 more with other numbers)"
    )

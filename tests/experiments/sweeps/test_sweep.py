"""A sweep: its tables, what its folder keeps, and what becomes of runs that fail."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pandas as pd
import pytest

import pagesim as ps
from pagesim.experiments.sweeps.keys import simulator
from pagesim.experiments.sweeps.sweep_tables import PARAMETERS, metrics_of

GRID = {"policy": ["orca-max", "vllm-sosp"], "rate": [1.0, 4.0]}
LOAD = {"num_requests": 40, "num_blocks": 300}

FAILING = {"num_blocks": [20, 300]}
"""With 20 blocks the prompt of 600 tokens is never admitted, and strict_compat stops there."""


def contents(folder):
    return {
        file.name: file.read_bytes() for file in folder.glob("*.parquet") if file.name != "timings.parquet"
    }


def stamps(folder):
    return {file.name: file.stat().st_mtime_ns for file in (folder / "runs").iterdir()}


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    out = tmp_path_factory.mktemp("sweep") / "out"
    return out, ps.sweep(grid=GRID, seeds=3, out=out, jobs=2, **LOAD)


def test_a_row_of_runs_is_the_run_alone(swept):
    _, tables = swept
    assert len(tables.runs) == 2 * 2 * 3
    assert (tables.runs["status"] == "done").all()
    row = tables.runs.iloc[-1]
    assert (row["policy"], row["rate"], row["seed"]) == ("vllm-sosp", 4.0, 2)
    trace = ps.make_trace("sharegpt", rate=4.0, num_requests=40, seed=2)
    alone = metrics_of(ps.simulate(trace, "vllm-sosp", num_blocks=300, seed=2).summary)
    found = {name: None if pd.isna(row[name]) else row[name] for name in alone}
    assert found == alone
    assert set(tables.runs.columns) == {"key", "status", "error", "notes", *PARAMETERS, *alone}


def test_a_row_of_means_is_over_the_seeds(swept):
    _, tables = swept
    assert len(tables.means) == 4
    runs = tables.runs[(tables.runs["policy"] == "orca-max") & (tables.runs["rate"] == 4.0)]
    point = tables.means[(tables.means["policy"] == "orca-max") & (tables.means["rate"] == 4.0)].iloc[0]
    values = runs["ttft.p99"].to_numpy(float)
    assert (point["runs"], point["failed"]) == (3, 0)
    assert point["ttft.p99"] == pytest.approx(values.mean())
    # t for two degrees of freedom is 4.3027.
    assert point["ttft.p99.ci95"] == pytest.approx(4.302653 * values.std(ddof=1) / np.sqrt(3))
    assert "seed" not in tables.means


def test_what_cannot_be_reproduced_is_kept_apart(swept):
    _, tables = swept
    assert list(tables.timings["key"]) == list(tables.runs["key"])
    assert (tables.timings["sim.wall_s"] > 0).all()
    assert not [name for name in (*tables.runs, *tables.means) if name.startswith("sim")]


def test_counts_are_whole_numbers_and_what_is_left_out_is_missing(swept):
    out, tables = swept
    read = pd.read_parquet(out / "runs.parquet")
    pd.testing.assert_frame_equal(read, tables.runs)
    assert str(read["requests.finished"].dtype) == str(read["block_size"].dtype) == "Int64"
    assert read["block_size"].isna().all()


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_same_sweep_gives_the_same_bytes(jobs, swept, tmp_path):
    ps.sweep(grid=GRID, seeds=3, out=tmp_path / "again", jobs=jobs, **LOAD)
    assert contents(tmp_path / "again") == contents(swept[0])
    assert set(contents(swept[0])) == {"runs.parquet", "means.parquet"}


def test_a_sweep_that_is_there_is_not_run_again(swept, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(swept[0], out)
    before = stamps(out)
    again = ps.sweep(grid=GRID, seeds=3, out=out, jobs=1, **LOAD)
    assert stamps(out) == before
    pd.testing.assert_frame_equal(again.timings, swept[1].timings)


def test_a_larger_sweep_runs_only_what_is_new(swept, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(swept[0], out)
    before = stamps(out)
    more = ps.sweep(grid={**GRID, "rate": [1.0, 2.0, 4.0]}, seeds=4, out=out, jobs=2, **LOAD)
    after = stamps(out)
    assert len(more.runs) == len(after) == 2 * 3 * 4
    assert {name: after[name] for name in before} == before


def test_half_a_file_is_no_run(swept, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(swept[0], out)
    file = next((out / "runs").iterdir())
    file.write_bytes(file.read_bytes()[:-20])
    ps.sweep(grid=GRID, seeds=3, out=out, jobs=1, **LOAD)
    assert contents(out) == contents(swept[0])
    assert json.loads(file.read_text())["status"] == "done"


def test_each_distinct_trace_is_made_once(monkeypatch):
    made = []

    def counted(scenario):
        made.append((scenario.rate, scenario.seed))
        return ps.api.trace_of(scenario)

    monkeypatch.setattr("pagesim.experiments.sweeps.runs.trace_of", counted)
    ps.sweep(grid=GRID, seeds=3, jobs=1, **{**LOAD, "num_requests": 41})
    assert sorted(made) == [(rate, seed) for rate in (1.0, 4.0) for seed in range(3)], "whatever the policy"


def test_a_run_is_another_when_the_trace_changes_or_pagesim_does(tmp_path, monkeypatch):
    file, out = tmp_path / "trace.csv", tmp_path / "out"
    file.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,10\n")

    def runs():
        return ps.sweep(file, grid={}, out=out, jobs=1).runs.iloc[0]

    first = runs()
    file.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,11\n")
    second = runs()
    assert first["key"] != second["key"]
    assert first["iterations"] != second["iterations"]
    monkeypatch.setattr(
        "pagesim.experiments.sweeps.keys.simulator", lambda: f"{simulator()} and another line"
    )
    assert runs()["key"] not in (first["key"], second["key"])


def test_a_failed_run_is_recorded_and_the_others_go_on(tmp_path):
    options = {"num_requests": 5, "strict_compat": True, "seeds": 2, "out": tmp_path / "out", "jobs": 2}
    tables = ps.sweep("fixed:600,10", grid=FAILING, **options)
    assert tables.runs["status"].tolist() == ["failed", "failed", "done", "done"]
    assert tables.runs["error"][0].startswith("strict_compat: ")
    assert tables.runs["error"].isna().tolist() == [False, False, True, True]
    assert pd.isna(tables.runs["iterations"][0])
    assert tables.runs["requests.finished"][2] == 5
    assert tables.means["runs"].tolist() == [0, 2]
    assert tables.means["failed"].tolist() == [2, 0]
    assert np.isnan(tables.means["ttft.mean"][0])
    before = stamps(tmp_path / "out")
    ps.sweep("fixed:600,10", grid=FAILING, **options)
    assert stamps(tmp_path / "out") == before, "a failure is not tried again unasked"
    ps.sweep("fixed:600,10", grid=FAILING, **options, retry_failed=True)
    after = stamps(tmp_path / "out")
    assert sum(after[name] != before[name] for name in before) == 2


def test_a_mistake_of_ours_in_one_run_is_recorded_too(monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("pagesim.experiments.sweeps.runs.run", broken)
    # In this process, where the patch is.
    tables = ps.sweep("fixed:10,10", grid={"block_size": [8, 16]}, num_requests=2, jobs=1)
    assert tables.runs["error"].tolist() == ["ZeroDivisionError: a bug"] * 2


def test_a_folder_with_something_else_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ps.PagesimError, match="is not empty and holds no sweep of pagesim"):
        ps.sweep(grid={}, out=tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


def test_without_a_folder_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tables = ps.sweep("fixed:10,10", grid={}, num_requests=2, jobs=1)
    assert tables.runs["requests.finished"].tolist() == [2]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"jobs": 0}, "jobs is 0; it must be at least 1"),
        ({"executor": "slurm"}, "executor is 'slurm'; it must be one of local, ray"),
        ({"address": "there:1"}, "address is 'there:1'; it is for executor ray, not local"),
        ({"num_block": 5}, "there is no option num_block; did you mean num_blocks?"),
        ({"seeds": 0}, "seeds is 0"),
    ],
)
def test_a_wrong_argument_is_said_in_one_sentence(options, said):
    with pytest.raises(ps.PagesimError) as caught:
        ps.sweep(grid={}, **options)
    assert str(caught.value).startswith(said)

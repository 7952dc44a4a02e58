"""A request that can never be served is no bad input: it is rejected, counted, and the run goes on."""

from __future__ import annotations

import pandas as pd
import pytest

POLICIES = ["static", "contiguous-max", "orca-max", "orca-pow2", "orca-oracle", "vllm-sosp"]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_request_longer_than_the_model_is_rejected_and_the_others_finish(policy, succeeds, trace_file):
    trace = trace_file("a,0,100,10\nb,0,10000000,10000000\nc,1,100,10\n")
    requests = succeeds("run", "--trace", trace, "--policy", policy, "--json").json["requests"]
    assert requests == {"total": 3, "finished": 2, "rejected": 1, "stuck": 0, "aborted": 0, "unfinished": 0}


@pytest.mark.parametrize("policy", ["static", "orca-oracle", "vllm-sosp"])
def test_a_request_longer_than_the_memory_is_rejected_and_the_others_finish(policy, succeeds, trace_file):
    trace = trace_file("a,0,100,10\nb,0,1000,10\nc,1,100,10\n")
    flags = ("--policy", policy, "--num-blocks", "16", "--json")
    requests = succeeds("run", "--trace", trace, *flags).json["requests"]
    assert requests == {"total": 3, "finished": 2, "rejected": 1, "stuck": 0, "aborted": 0, "unfinished": 0}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_trace_of_which_nothing_can_be_served_ends_in_nulls(policy, succeeds, trace_file, tmp_path):
    trace = trace_file("a,0,50000,5\nb,1,50000,5\n")
    out = tmp_path / "out"
    summary = succeeds("run", "--trace", trace, "--policy", policy, "--json", "--out", out).json
    assert summary["requests"]["rejected"] == 2
    assert summary["iterations"] == 0
    assert summary["ttft"]["mean"] is None
    assert summary["throughput"] == {"requests_per_s": None, "tokens_per_s": None}
    assert pd.read_parquet(out / "requests.parquet")["status"].tolist() == ["rejected", "rejected"]
    steps = pd.read_parquet(out / "steps.parquet")
    assert len(steps) == 0
    assert {"step", "clock", "num_running", "used", "free"} <= set(steps.columns)


def test_a_table_without_rows_has_the_columns_of_any_other(succeeds, trace_file, tmp_path):
    for name, tokens in (("none", 50_000), ("some", 50)):
        trace = trace_file(f"a,0,{tokens},5\n")
        succeeds("run", "--trace", trace, "--policy", "static", "--steps", "--out", tmp_path / name)
    for table in ("requests", "steps", "batches"):
        none, some = (pd.read_parquet(tmp_path / name / f"{table}.parquet") for name in ("none", "some"))
        assert none.columns.tolist() == some.columns.tolist()
        if table == "steps":
            assert none.dtypes.tolist() == some.dtypes.tolist()


def test_a_rejection_is_said(succeeds, trace_file):
    trace = trace_file("a,0,100,10\nb,0,50000,5\n")
    assert "1 rejected" in succeeds("run", "--trace", trace).out
    assert "vllm-sosp: 1 of 2 requests finished, 1 rejected" in succeeds("compare", "--trace", trace).out

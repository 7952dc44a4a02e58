"""A capacity search: its answer is that of running there, and it says when there is none."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import pagesim as ps
from pagesim.experiments.sweeps.rate_search import ALWAYS, FOUND, NEVER, RateSearch

POLICIES = ["orca-max", "vllm-sosp"]
LOAD = {"num_requests": 120, "jobs": 2}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    out = tmp_path_factory.mktemp("capacity") / "out"
    return out, ps.capacity(policies=POLICIES, goals="p99_ttft<=2s", seeds=2, out=out, **LOAD)


def p99_ttft(policy, rate):
    traces = (ps.make_trace("sharegpt", rate=rate, num_requests=120, seed=seed) for seed in (0, 1))
    return np.mean([ps.simulate(trace, policy).summary["ttft"]["p99"] for trace in traces])


def test_the_goal_holds_at_the_rate_found_and_fails_just_above(found):
    _, tables = found
    assert tables.rates["policy"].tolist() == POLICIES
    assert tables.rates["verdict"].tolist() == [FOUND, FOUND]
    for row in tables.rates.itertuples():
        assert p99_ttft(row.policy, row.rate) <= 2 < p99_ttft(row.policy, row.fails_at)
        assert row.rate < row.fails_at <= 1.02 * row.rate
    assert tables.rates["rate"][1] > 2 * tables.rates["rate"][0], "blocks on demand serve far more"


def test_the_table_shows_the_goals_metric_at_that_rate(found):
    _, tables = found
    assert tables.rates["ttft.p99"][1] == pytest.approx(p99_ttft("vllm-sosp", tables.rates["rate"][1]))


def test_the_same_requests_are_sent_at_every_rate():
    slow, fast = (ps.make_trace("sharegpt", rate=rate, num_requests=50, seed=3) for rate in (0.7, 2.3))
    assert slow.prompt_tokens.tolist() == fast.prompt_tokens.tolist()
    assert slow.output_tokens.tolist() == fast.output_tokens.tolist()
    np.testing.assert_allclose(slow.arrival_s * 0.7, fast.arrival_s * 2.3, rtol=1e-12)


def test_a_search_is_a_sweep_whose_runs_are_kept(found):
    out, tables = found
    assert len(list((out / "runs").iterdir())) == 2 * len(tables.probes)
    before = {file.name: file.stat().st_mtime_ns for file in (out / "runs").iterdir()}
    again = ps.capacity(policies=POLICIES, goals="p99_ttft<=2s", seeds=2, out=out, **LOAD)
    assert {file.name: file.stat().st_mtime_ns for file in (out / "runs").iterdir()} == before
    pd.testing.assert_frame_equal(again.rates, tables.rates)
    pd.testing.assert_frame_equal(pd.read_parquet(out / "capacity.parquet"), tables.rates)
    # A sweep over one of these rates in the same folder finds its runs there.
    rate = float(tables.rates["rate"][0])
    ps.sweep(grid={"policy": POLICIES[:1], "rate": [rate]}, num_requests=120, seeds=2, out=out, jobs=1)
    assert {file.name: file.stat().st_mtime_ns for file in (out / "runs").iterdir()} == before


def test_of_several_goals_all_hold(found):
    goals = ["p99_ttft<=2s", "mean_tpot<=29ms"]
    both = ps.capacity(policies=["vllm-sosp"], goals=goals, seeds=2, **LOAD).rates.iloc[0]
    assert both["rate"] < found[1].rates["rate"][1]
    assert both["tpot.mean"] <= 0.029
    assert both["ttft.p99"] <= 2


def test_a_goal_that_fails_even_at_the_lowest_rate_is_said():
    row = ps.capacity(policies=["vllm-sosp"], goals="ttft<=1ms", **LOAD).rates.iloc[0]
    assert row["verdict"] == f"{NEVER} rate" == "fails at the lowest rate"
    assert np.isnan(row["rate"])
    assert row["fails_at"] == 0.1


def test_a_goal_that_holds_at_the_highest_rate_is_said():
    options = {"lowest": 0.5, "highest": 3.0, **LOAD}
    row = ps.capacity(policies=["vllm-sosp"], goals="ttft<=1000s", **options).rates.iloc[0]
    assert row["verdict"] == f"{ALWAYS} rate" == "holds at the highest rate"
    assert row["rate"] == 3.0
    assert np.isnan(row["fails_at"])


def test_who_drops_requests_keeps_no_goal():
    tables = ps.capacity("fixed:500,100", ["orca-max"], goals="latency<=1000s", client_timeout=20.0, **LOAD)
    row = tables.rates.iloc[0]
    assert row["verdict"] == FOUND
    failing = tables.probes[tables.probes["rate"] == row["fails_at"]].iloc[0]
    assert failing["latency.mean"] < 1000
    assert failing["unserved"] > 0
    assert not failing["hold"]


def test_a_run_that_fails_keeps_no_goal():
    tables = ps.capacity(
        "fixed:600,10", ["vllm-sosp"], goals="ttft<=10s", num_blocks=20, strict_compat=True, **LOAD
    )
    assert tables.rates["verdict"].tolist() == [f"{NEVER} rate"]
    assert tables.probes["error"][0].startswith("strict_compat: ")


def test_a_bracket_doubles_and_then_halves_its_distance():
    bracket = RateSearch(1.0, 100.0, 0.01)
    tried = []
    while (rate := bracket.next()) is not None:
        tried.append(rate)
        bracket.learn(rate, holds=rate <= 5.0)
    assert tried[:5] == [1.0, 2.0, 4.0, 8.0, 5.65685]
    assert bracket.holds <= 5.0 < bracket.fails <= 1.01 * bracket.holds
    assert len(tried) == 4 + 7
    assert bracket.left() == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"goals": []}, "goals is empty"),
        ({"goals": ["ttft<2"]}, "goal is 'ttft<2'"),
        ({"rate": 2.0}, "rate is 2; a capacity search finds it"),
        (
            {"find": "max_concurrency", "max_concurrency": 8},
            "max_concurrency is 8; this capacity search finds it",
        ),
        ({"find": "max_concurrency", "lowest": 0.5}, "lowest is 0.5; of requests it must be a whole number"),
        ({"find": "cv"}, "find is 'cv': input should be 'rate' or 'max_concurrency'"),
        ({"duration": 60.0}, "duration is 60; a capacity search sends the same requests at every rate"),
        (
            {"arrivals": "all-at-once"},
            "arrivals is 'all-at-once'; a capacity search needs a process with a rate",
        ),
        ({"lowest": 5.0, "highest": 5.0}, "lowest is 5; it must be below highest, 5"),
        ({"tolerance": 0.0}, "tolerance is 0.0"),
        ({"policies": ["vllm"]}, "policy is 'vllm'; it must be one of"),
    ],
)
def test_a_search_that_makes_no_sense_is_said_in_one_sentence(options, said):
    with pytest.raises(ps.PagesimError) as caught:
        ps.capacity(**{"goals": ["ttft<=1s"], "num_requests": 5, **options})
    assert str(caught.value).startswith(said)


def test_a_load_that_is_a_short_burst_says_so():
    """A request takes 100 iterations of 20 ms: 8 are outstanding at 4 requests/s, and 16 of 100 at 8."""
    tables = ps.capacity(
        "fixed:300,100",
        ["vllm-sosp"],
        goals="latency<=100s",
        lowest=4,
        highest=8,
        num_requests=100,
        num_blocks=2000,
        cost="affine:0.02,0,0",
        jobs=1,
    )
    few, many = tables.probes["notes"].tolist()
    assert tables.probes["rate"].tolist() == [4, 8]
    assert "burst" not in few
    assert (
        "100 requests are a short burst: at 8 requests/s they arrive within 12.5 s, and one takes 2" in many
    )

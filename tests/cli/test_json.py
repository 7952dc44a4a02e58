"""``--json`` and ``summary.json``: what scripts rely on."""

from __future__ import annotations

import json

import pytest

SMALL = ("--trace", "sharegpt", "--rate", "4", "--duration", "10", "--num-blocks", "300")
POINTS = ["mean", "p50", "p90", "p95", "p99"]
STRICT = ["used", "reserved", "unused_reservation", "rounding", "external", "cached", "free"]
PAPER = ["token_states", "reservation", "internal", "external"]
POLICIES = ["static", "contiguous-max", "orca-max", "orca-pow2", "orca-oracle", "vllm-sosp"]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_summary_holds_every_metric(policy, succeeds):
    summary = succeeds("run", *SMALL, "--policy", policy, "--json").json
    requests = summary["requests"]
    assert requests["total"] == sum(
        requests[status] for status in ("finished", "rejected", "unschedulable", "aborted", "unfinished")
    )
    for latency in ("normalized_latency", "latency", "ttft", "tpot", "queueing", "itl"):
        assert list(summary[latency]) == POINTS
    numbers = [
        *(summary[name][point] for name in ("normalized_latency", "ttft", "tpot") for point in POINTS),
        summary["throughput"]["requests_per_s"],
        summary["throughput"]["tokens_per_s"],
        summary["batch"]["mean"],
        summary["sim"]["wall_s"],
        summary["sim"]["peak_rss_mb"],
    ]
    assert all(number > 0 for number in numbers)
    counts = [
        summary["iterations"],
        *summary["preemptions"].values(),
        *summary["swapped_blocks"].values(),
    ]
    assert all(type(count) is int for count in counts)
    assert set(summary["preemptions"]) == {"recompute", "swap"}
    assert set(summary["swapped_blocks"]) == {"in", "out"}
    assert 0 <= summary["sharing"]["saving"] < 1


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("mean", ["per_iteration", "per_second"])
def test_where_the_memory_went_adds_up_to_all_of_it(policy, mean, succeeds):
    memory = succeeds("run", *SMALL, "--policy", policy, "--json").json["memory"]
    for view, entries in (("strict", STRICT), ("paper", PAPER)):
        assert list(memory[view][mean]) == entries
        assert sum(memory[view][mean].values()) == pytest.approx(100)


def test_json_of_a_comparison_is_a_summary_a_policy(succeeds, tmp_path):
    outcome = succeeds("run", *SMALL, "--policies", "orca-max,vllm-sosp", "--json", "--out", tmp_path / "c")
    assert list(outcome.json) == ["runs"]
    assert list(outcome.json["runs"]) == ["orca-max", "vllm-sosp"]
    assert json.loads((tmp_path / "c" / "summary.json").read_text()) == outcome.json
    for policy, summary in outcome.json["runs"].items():
        assert summary["policy"] == policy
        assert json.loads((tmp_path / "c" / policy / "summary.json").read_text()) == summary


def test_json_is_what_is_stored(succeeds, tmp_path):
    outcome = succeeds("run", *SMALL, "--json", "--out", tmp_path / "r")
    assert (tmp_path / "r" / "summary.json").read_text() == outcome.out


def test_what_was_assumed_is_said_beside_the_json(succeeds, trace_file):
    unsorted = trace_file("a,5,10,10\nb,1,10,10\n")
    outcome = succeeds("run", "--trace", unsorted, "--json")
    assert outcome.json["requests"]["total"] == 2
    assert "have been sorted" in outcome.err


def test_a_mean_of_nothing_is_null(succeeds, trace_file):
    summary = succeeds("run", "--trace", trace_file("a,0,10,1\n"), "--window", "5:6", "--json").json
    assert summary["tpot"] == dict.fromkeys(POINTS)
    assert summary["batch"] == {"mean": None}
    assert summary["memory"]["strict"]["per_iteration"] == dict.fromkeys(STRICT)

"""Engines at saturation: the same terms are the same, and what differs is what the engines decide."""

from __future__ import annotations

from typing import Any

import pytest

from pagesim.accounting.metrics import STRICT_ENTRIES
from pagesim.errors import PagesimError
from pagesim.experiments.engines import TERMS, serve_engines
from pagesim.setup.system import System, checked
from pagesim.workloads import make_trace
from pagesim.workloads.trace import Trace

POLICIES = ("vllm-v1", "sglang", "vllm-sosp", "orca-max")
COST = "auto"


def asked(**options: object) -> System:
    return checked(System, {"model": "llama-3.1-8b", "gpu": "h100", "cost": COST, **options})


@pytest.fixture(scope="module")
def trace() -> Trace:
    # Some 40 requests fill the cache.
    return make_trace("fixed:8192,512", num_requests=150)


@pytest.fixture(scope="module")
def served(trace: Trace) -> dict[tuple[str, str, str], dict[str, Any]]:
    found = [values for values, _ in serve_engines(asked(), trace, POLICIES) if "batch" in values]
    return {(one["policy"], one["sizing"], one["loop"]): one for one in found}


def test_every_engine_serves_every_request_on_every_terms(served, trace: Trace) -> None:
    assert set(served) == {(policy, *terms) for policy in POLICIES for terms in TERMS}
    assert {one["finished"] for one in served.values()} == {len(trace)}


def test_the_same_bytes_are_the_same_but_for_a_rest_of_a_block(served) -> None:
    same = [served[policy, "same", "none"]["kv_gib"] for policy in POLICIES]
    assert max(same) - min(same) <= 2 * 16 * 131072 / (1 << 30)
    own = {round(served[policy, "own", "none"]["kv_gib"], 1) for policy in POLICIES}
    assert len(own) > 1


def test_every_slot_is_in_one_entry_of_the_ledger(served) -> None:
    for one in served.values():
        assert sum(
            one[f"{entry}_percent"] for entry in STRICT_ENTRIES if f"{entry}_percent" in one
        ) == pytest.approx(100)


def test_the_loop_costs_time_and_no_memory(served) -> None:
    for policy in POLICIES:
        free, own = (served[policy, "same", loop] for loop in ("none", "own"))
        assert free["tokens_per_s"] > own["tokens_per_s"]
        assert free["kv_gib"] == own["kv_gib"]


def test_work_is_repeated_only_where_requests_are_preempted(served) -> None:
    for one in served.values():
        assert (one["repeated_percent"] > 0) == (one["preempted"] > 0), one
    assert served["orca-max", "same", "none"]["preempted"] == 0


def test_a_reservation_of_the_longest_runs_fewer_requests(served) -> None:
    orca, paged = (served[policy, "same", "none"] for policy in ("orca-max", "vllm-v1"))
    assert orca["batch"] < paged["batch"] / 1.5
    assert orca["unused_reservation_percent"] > 30
    assert orca["tokens_per_s"] < paged["tokens_per_s"]


def test_a_prefix_that_returns_is_hit_where_prefixes_are_cached() -> None:
    trace = make_trace("fixed:256,64", num_requests=300, shared_prefix="4096:0.5")
    runs = serve_engines(asked(), trace, ("vllm-v1", "sglang", "vllm-sosp"), clients=280)
    found = {values["policy"]: values for values, _ in runs if "batch" in values}
    assert found["vllm-sosp"]["hit_percent"] == 0
    assert min(found[policy]["hit_percent"] for policy in ("vllm-v1", "sglang")) > 50


def test_an_engine_that_does_not_start_with_so_long_prompts_is_named_with_the_reason() -> None:
    trace = make_trace("fixed:100000,64", num_requests=40)
    runs = serve_engines(asked(), trace, ("vllm-v1", "orca-max"))
    refused = [(row["policy"], row["sizing"], notes) for row, notes in runs if "batch" not in row]
    assert [each[:2] for each in refused] == [("orca-max", "own"), ("orca-max", "own")]
    assert "leave no room for a KV block" in refused[0][2][0]


def test_what_leaves_no_engine_at_saturation_is_refused(trace: Trace) -> None:
    with pytest.raises(PagesimError, match="no request waits: more clients are needed"):
        list(serve_engines(asked(), trace, ("vllm-v1",), clients=1))
    with pytest.raises(PagesimError, match="a profile or roofline is needed"):
        list(serve_engines(asked(cost="affine:0.01,1e-5,1e-7"), trace, ("vllm-v1",)))

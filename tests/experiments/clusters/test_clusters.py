"""Clusters: replicas decide as engines alone would; routers see what is true when a request arrives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pagesim as ps
from pagesim.errors import PagesimError
from pagesim.experiments.clusters import ROUTERS, Replicas, find_router, run_cluster
from pagesim.experiments.clusters.fleet import independent_replicas
from pagesim.experiments.clusters.replicas import ReplicaState
from pagesim.setup.prepare import prepare
from pagesim.setup.server import Server
from pagesim.setup.system import System
from pagesim.workloads.trace import Request
from tests.traces import random_load as load

COST = "affine:0.02,1e-4,1e-6"
TIMES = ["first_scheduled_s", "first_token_s", "finish_s"]


def alike(one: pd.DataFrame, other: pd.DataFrame) -> None:
    columns = [name for name in one.columns if name != "replica"]
    pd.testing.assert_frame_equal(
        one[columns].reset_index(drop=True), other[columns].reset_index(drop=True), check_exact=True
    )


@pytest.mark.parametrize("policy", ["vllm-sosp", "vllm-v0", "vllm-v1", "orca-pow2", "static"])
def test_a_cluster_of_one_is_an_engine(policy: str) -> None:
    options: dict[str, Any] = {"num_blocks": 60, "cost": COST, "max_model_len": 512}
    if policy == "static":
        options |= {"max_batch": 3}
    alone = ps.simulate(load(), policy, **options)
    one = ps.simulate_cluster(load(), policy, replicas=1, router="fewest-kv-tokens", **options)
    alike(one.requests, alone.requests)
    for part in ("iterations", "preemptions", "normalized_latency", "itl", "batch", "requests", "throughput"):
        assert one.summary[part] == alone.summary[part]


def test_a_tier_has_of_a_cluster_of_one_what_it_has_of_an_engine() -> None:
    trace = load()
    options: dict[str, Any] = {
        "num_blocks": 60,
        "cost": COST,
        "model": "opt-125m",
        "enable_prefix_caching": True,
    }
    setting = prepare(
        System(policy="vllm-v1", kv_offloading_chunks=30, kv_offloading_threshold=2, **options), trace
    )
    alone = Server(setting, setting.new_log(), setting.arrivals())
    alone.replay()
    cluster = independent_replicas(setting, setting.new_log(), find_router("round-robin"), 1)
    cluster.replay()
    (one,) = cluster.servers
    tiers = one.summary()["memory"]["tiers"]["host"]["per_second"]
    assert tiers["free"] is not None
    wanted = alone.summary()["memory"]["tiers"]["host"]["per_second"]
    for entry in ("pending", "pinned", "free"):  # the others are looked for now and then only
        assert tiers[entry] == wanted[entry]


@pytest.mark.parametrize("policy", ["vllm-sosp", "vllm-v1"])
def test_round_robin_is_as_many_engines_that_know_nothing_of_one_another(policy: str) -> None:
    trace = load(size=90, rate=15)
    result = ps.simulate_cluster(trace, policy, replicas=3, num_blocks=60, cost=COST)
    assert result.requests["replica"].tolist() == [row % 3 for row in range(90)]
    for number in range(3):
        rows = np.arange(number, 90, 3)
        alone = ps.simulate(trace.take(rows), policy, num_blocks=60, cost=COST)
        alike(result.requests.iloc[rows], alone.requests)
        assert result.replicas["iterations"][number] == alone.summary["iterations"]
        assert result.replicas["mean_batch"][number] == alone.summary["batch"]["mean"]
    assert result.summary["preemptions"]["recompute"] > 0, "memory is meant to be short"


def test_strict_compat_stops_at_the_first_dead_end_of_all_replicas() -> None:
    # The first replica is busy until 4 s with the first request; the fourth has the second one for itself.
    trace = ps.Trace([0.0, 0.0, 1.0, 1.5], [20, 20, 384, 384], [200, 5, 5, 5])
    with pytest.raises(PagesimError, match=r"at 1\.5.* request 3: "):
        ps.simulate_cluster(trace, replicas=2, num_blocks=24, watermark=0.1, cost=COST, strict_compat=True)


@pytest.mark.parametrize("router", ["round-robin", "least-loaded"])
def test_the_progress_callback_counts_every_request(router: str) -> None:
    heard: list[int] = []
    system = System(policy="vllm-sosp", num_blocks=60, cost=COST)
    run_cluster(system, load(), replicas=3, router=router, progress=heard.append)
    assert heard == sorted(heard)
    assert heard[-1] == 80


@given(
    seed=st.integers(0, 2**32 - 1),
    router=st.sampled_from(sorted(ROUTERS)),
    policy=st.sampled_from(["vllm-sosp", "vllm-v0", "vllm-v1", "orca-oracle"]),
    replicas=st.integers(1, 5),
    num_blocks=st.integers(20, 80),
    samples=st.booleans(),
    aborts=st.booleans(),
    bins=st.booleans(),
)
def test_fast_forwards_change_nothing_not_even_where_requests_go(
    seed, router, policy, replicas, num_blocks, samples, aborts, bins
) -> None:
    trace = load(seed, 40, rate=4.0 * replicas)
    rng = np.random.default_rng(seed)
    columns: dict[str, Any] = {}
    if bins:  # equal arrivals, and arrivals at the very end of an iteration
        columns["arrival_s"] = np.floor(trace.arrival_s * 50) / 50
    if samples:
        columns["n"] = rng.integers(1, 3, len(trace))
    if aborts:
        columns["abort_s"] = np.where(
            rng.random(len(trace)) < 0.4, trace.arrival_s + rng.exponential(2, 40), np.inf
        )
    trace = trace.with_columns(columns)
    cost = "affine:0.02,0,0" if bins else COST
    forwarding, stepping = (
        ps.simulate_cluster(
            trace,
            policy,
            replicas=replicas,
            router=router,
            num_blocks=num_blocks,
            cost=cost,
            fast_forward=fast_forward,
        )
        for fast_forward in (True, False)
    )
    pd.testing.assert_frame_equal(forwarding.requests, stepping.requests, check_exact=True)
    pd.testing.assert_frame_equal(forwarding.replicas, stepping.replicas, check_exact=True)
    drop = ("sim", "extrapolated")
    assert {k: v for k, v in forwarding.summary.items() if k not in drop} == {
        k: v for k, v in stepping.summary.items() if k not in drop
    }


def says(replicas: Replicas, replica: int, what: ReplicaState) -> None:
    replicas.ask[replica] = lambda: what


def test_a_router_sees_what_an_engine_holds_while_it_fast_forwards() -> None:
    replicas = Replicas(2)
    # 5 sequences of 100 tokens in an iteration until 10; then 4 steps of 10 ticks.
    says(replicas, 1, ReplicaState(100, 10, (4, 10, 0, 105), 5))
    seen = {now: replicas.kv_tokens(now).tolist()[1] for now in (0, 10, 11, 20, 21, 35)}
    assert seen == {0: 100, 10: 100, 11: 105, 20: 105, 21: 110, 35: 115}
    assert replicas.kv_tokens(35)[0] == 0


def test_least_loaded_goes_where_the_fewest_are() -> None:
    replicas = Replicas(3)
    replicas.outstanding[:] = 2, 1, 1
    assert find_router("least-loaded").choose(Request(0, 0.0, 1, 1), replicas, 0) == 1


def test_waiting_prompts_count_for_the_router_of_tokens() -> None:
    replicas = Replicas(2)
    says(replicas, 0, ReplicaState(50, 10, (0, 0, 0, 0), 1))
    replicas.waiting_tokens[1] = 60
    router = find_router("fewest-kv-tokens")
    assert router.choose(Request(0, 0.0, 1, 1), replicas, 5) == 0
    replicas.waiting_tokens[0] = 20
    assert router.choose(Request(0, 0.0, 1, 1), replicas, 5) == 1


def test_nothing_waits_and_nobody_is_outstanding_in_the_end(monkeypatch) -> None:
    kept: list[Replicas] = []

    class Watching:
        def choose(self, request: Request, replicas: Replicas, now: int) -> int:
            kept.append(replicas)
            return len(kept) % 3

    trace = load(size=60, rate=30)
    trace = trace.with_columns({"abort_s": trace.arrival_s + np.where(np.arange(60) % 4, np.inf, 1.0)})
    result = ps.simulate_cluster(trace, replicas=3, router=Watching(), num_blocks=40, cost=COST)
    assert result.summary["requests"]["aborted"] > 0
    assert kept[-1].outstanding.tolist() == [0, 0, 0]
    assert kept[-1].waiting_tokens.tolist() == [0, 0, 0]
    assert kept[-1].kv_tokens(10**18).tolist() == [0, 0, 0]


def test_affinity_finds_more_prefixes_than_taking_turns() -> None:
    rng = np.random.default_rng(1)
    size = 120
    prefixes = rng.integers(0, 12, size)
    columns = {"hash_ids": np.empty(size, object), "hash_block_size": 64}
    for row, prefix in enumerate(prefixes):
        columns["hash_ids"][row] = (int(prefix), 1000 + row)
    trace = ps.Trace(np.cumsum(rng.exponential(0.05, size)), np.full(size, 128), rng.integers(1, 40, size))
    trace = trace.with_columns(columns)
    shares = {
        router: ps.simulate_cluster(
            trace, "vllm-v1", replicas=4, router=router, num_blocks=200, cost=COST, enable_prefix_caching=True
        ).summary["prefix"]["share"]
        for router in ("round-robin", "prefix-affinity")
    }
    assert shares["prefix-affinity"] > 1.2 * shares["round-robin"]


def test_affinity_yields_where_everybody_begins_alike() -> None:
    trace = load(size=100, rate=40, prefix_tokens=np.ones(100, np.int64))
    result = ps.simulate_cluster(trace, replicas=4, router="prefix-affinity", num_blocks=100, cost=COST)
    assert result.replicas["requests"].min() > 0


def test_a_router_that_answers_nonsense_is_named() -> None:
    class Lost:
        def choose(self, request: Request, replicas: Replicas, now: int) -> int:
            return len(replicas)

    with pytest.raises(PagesimError, match="router Lost chose replica 2; it must be from 0 to 1"):
        ps.simulate_cluster(load(), replicas=2, router=Lost())
    with pytest.raises(PagesimError, match="replicas is 0; it must be from 1 to 4096"):
        ps.simulate_cluster(load(), replicas=0)

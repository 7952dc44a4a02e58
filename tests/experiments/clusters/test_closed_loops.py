"""Closed loops over a cluster: its clients share one bound, and see what is over at any replica."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import pagesim as ps
from pagesim.experiments.clusters import ROUTERS
from tests.experiments.clusters.test_clusters import alike
from tests.traces import random_load as load

OPTIONS: dict[str, Any] = {"num_blocks": 60, "cost": "affine:0.02,1e-4,1e-6", "max_model_len": 512}


def conversations(seed: int, **columns: Any) -> ps.Trace:
    rng = np.random.default_rng(seed)
    return load(seed, rate=15.0, session_id=np.arange(80) // 4, think_s=rng.choice([0.0, 0.4], 80), **columns)


@pytest.mark.parametrize("policy", ["vllm-sosp", "vllm-v0", "vllm-v1", "ahead", "orca-pow2", "static"])
@pytest.mark.parametrize("places", [None, 6])
def test_a_cluster_of_one_is_an_engine_also_in_a_closed_loop(policy: str, places: int | None) -> None:
    options = {**OPTIONS, "max_concurrency": places}
    options |= {"max_batch": 3} if policy == "static" else {"client_timeout": 6.0}
    if policy in ("vllm-v1", "ahead"):
        policy, options["async_scheduling"] = "vllm-v1", policy == "ahead"
    alone = ps.simulate(conversations(0), policy, **options)
    one = ps.simulate_cluster(conversations(0), policy, replicas=1, router="fewest-kv-tokens", **options)
    alike(one.requests, alone.requests)
    assert one.summary["iterations"] == alone.summary["iterations"]


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("router", ROUTERS)
def test_a_cluster_decides_the_same_with_and_without_fast_forward_in_a_closed_loop(
    router: str, ahead: bool
) -> None:
    options = {**OPTIONS, "async_scheduling": ahead}
    for given in (load(3, rate=15.0), conversations(4)):
        forward, stepping = (
            ps.simulate_cluster(
                given, "vllm-v1", replicas=3, router=router, max_concurrency=12, fast_forward=ff, **options
            ).requests
            for ff in (True, False)
        )
        pd.testing.assert_frame_equal(forward, stepping, check_exact=True)
        assert (forward["status"] != "unfinished").all()
        assert forward["replica"].nunique() == 3


def test_the_bound_holds_over_all_replicas_together() -> None:
    requests = ps.simulate_cluster(
        load(5, rate=15.0), "vllm-v1", replicas=3, router="least-loaded", max_concurrency=7, **OPTIONS
    ).requests
    sent, over = requests["arrival_s"].to_numpy(), requests["finish_s"].to_numpy()
    for row in range(len(requests)):
        assert int((over[:row] > sent[row]).sum()) < 7
    assert (sent > requests["due_s"].to_numpy()).sum() > 40


def test_what_is_over_at_an_instant_at_any_replica_is_known_to_the_router_that_routes_the_next() -> None:
    # Two replicas end an iteration at every full second; both requests are over at 2 s.
    given = ps.Trace(np.zeros(4), np.full(4, 4), np.array([2, 2, 3, 3]))
    requests = ps.simulate_cluster(
        given,
        "vllm-v1",
        replicas=2,
        router="least-loaded",
        max_concurrency=2,
        num_blocks=50,
        async_scheduling=False,
        cost="affine:1,0,0",
    ).requests
    assert requests["replica"].tolist() == [0, 1, 0, 1]
    assert requests["arrival_s"].tolist() == [0.0, 0.0, 2.0, 2.0]
    assert requests["first_scheduled_s"].tolist() == [0.0, 0.0, 2.0, 2.0]

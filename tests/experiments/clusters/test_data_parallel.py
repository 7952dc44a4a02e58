"""Data parallelism as vLLM's: what its parts do.

That every step, route, publication and pass is vLLM's is in the golden logs (``golden/parallel.toml``);
that fast-forward and stepping decide the same, in ``sim/test_served_systems.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pagesim as ps
from pagesim.errors import PagesimError
from pagesim.experiments.clusters.balancer import LoadBalancer
from pagesim.experiments.clusters.coordinator import Counts
from pagesim.experiments.clusters.replicas import Replicas
from pagesim.workloads.trace import Request
from tests.sim.served_systems import COST, SPARSE, replay_ranks
from tests.traces import random_load, trace_of

# The parts


def test_an_api_server_goes_by_stale_counts_by_its_own_requests_and_by_full_caches() -> None:
    """Each choice as the rules say: max(servers · own, waiting + running) + 6 · waiting · (usage − 1/2)."""
    balancer = LoadBalancer(3, 1, 1, np.arange(20))
    view = Replicas(3)
    rows = iter(range(20))

    def choose() -> int:
        row = next(rows)
        return balancer.choose(Request(row, 0.0, 1, 1, row=row), view, 0)

    # The first of equals, from a place that moves on by one.
    assert [choose() for _ in range(4)] == [0, 1, 2, 0]
    # What is published replaces what was counted since, and not the server's own requests: 2, 1, 1.
    balancer.publish([Counts(0, 2, 0.2), Counts(3, 0, 0.9), Counts(0, 4, 0.1)], 7)
    assert balancer.wave == 7
    assert choose() == 0  # 2, 3 + 3 · 6 · 0.4 and 4
    assert choose() == 0  # 3 by its own and by the waiting one, as against 10.2 and 4
    balancer.publish([Counts(), Counts(), Counts()], 7)
    assert choose() == 1  # its own ones at each are 4, 1 and 1, and 1 comes first from place 0
    for row in (0, 3, 4, 5):
        balancer.over(row)
    assert choose() == 0  # they are 0, 2 and 1


def test_with_several_servers_each_knows_its_own_requests_and_takes_the_others_to_do_alike() -> None:
    balancer = LoadBalancer(2, 2, 1, np.arange(20))
    view = Replicas(2)
    chosen = [balancer.choose(Request(row, 0.0, 1, 1, row=row), view, 0) for row in range(6)]
    assert [choice.server for choice in balancer.choices] == [0, 1, 0, 1, 0, 1]
    assert chosen == [0, 1, 1, 0, 0, 1]
    assert balancer.choices[2].counts == [Counts(2, 0, 0.0), Counts(0, 0, 0.0)]


def test_under_hybrid_balancing_a_node_sends_requests_to_its_own_ranks_only() -> None:
    balancer = LoadBalancer(4, 2, 2, np.repeat(np.arange(10), 3))
    view = Replicas(4)
    chosen = [balancer.choose(Request(row // 3, 0.0, 1, 1, row=row), view, 0) for row in range(30)]
    nodes = [rank // 2 for rank in chosen]
    assert nodes == [row // 3 % 2 for row in range(30)], "the samples of a request come to one server"
    assert {choice.server for choice in balancer.choices} == {0, 1, 2, 3}


# What is refused, and what a run says


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"data_parallel_lb": "hybrid"}, "it is for several engines: give data_parallel_size, too"),
        ({"data_parallel_size": 2, "vllm_version": "0.19.0"}, "is in no log of its decisions"),
        ({"data_parallel_size": 4, "data_parallel_size_local": 3}, "it must divide data_parallel_size"),
        ({"data_parallel_size": 4, "data_parallel_lb": "hybrid"}, "give data_parallel_size_local"),
        ({"data_parallel_size": 2, "data_parallel_lb": "external"}, "opt-13b has no experts; vLLM does not"),
        (
            {
                "model": SPARSE,
                "data_parallel_size": 2,
                "data_parallel_lb": "external",
                "api_server_count": 2,
            },
            "that has one: leave it out",
        ),
        (
            {"model": SPARSE, "data_parallel_size": 2, "kv_offloading_chunks": 50},
            "where engines step together is in no log",
        ),
        ({"data_parallel_size": 2, "enable_expert_parallel": True}, "opt-13b has no experts; vLLM does not"),
        ({"data_parallel_size": 2, "router": "least-loaded"}, "vLLM balances its ranks itself"),
        ({"data_parallel_size": 2, "replicas": 3}, "the replicas of a deployment are its ranks"),
        ({"data_parallel_size": 2, "policy": "sglang"}, "data_parallel_size is for scheduler vllm-v1"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, Any], said: str) -> None:
    options = {"num_blocks": 100, "cost": COST, "replicas": None, **options}
    if "data_parallel_size" not in options:
        options["replicas"] = 2
    with pytest.raises(PagesimError, match=said):
        ps.simulate_cluster(random_load(size=3), **options)


def test_one_engine_is_no_deployment() -> None:
    with pytest.raises(PagesimError, match="this replays one engine"):
        ps.simulate(random_load(size=3), data_parallel_size=2, num_blocks=100, cost=COST)


def test_a_router_in_front_of_ranks_sends_whole_requests_to_one_of_them() -> None:
    trace = random_load(size=30).with_columns({"n": np.tile([1, 2, 3], 10)})
    options = {"model": SPARSE, "num_blocks": 200, "cost": COST, "max_model_len": 512}
    result = ps.simulate_cluster(
        trace, data_parallel_size=3, data_parallel_lb="external", router="round-robin", **options
    )
    of_samples = [request % 3 for request in range(30) for _ in range(1 + request % 3)]
    assert result.requests["replica"].tolist() == of_samples
    assert result.summary["cluster"]["router"] == "round-robin"


# Ranks that step together


def test_an_idle_rank_runs_dummies_until_the_ranks_agree_that_none_has_anything_to_do() -> None:
    """One request of 3 tokens, on two ranks: passes at 0, then agreement after step 1 and after step 16."""
    ranks, steps, columns = replay_ranks(
        trace_of((1.0, 10, 3)), model=SPARSE, data_parallel_size=2, num_blocks=50, async_scheduling=False
    )
    assert ranks.lock_step is not None
    passes = ranks.lock_step.passes
    assert len(passes) == 16
    assert [each.dummies for each in passes] == [[False, True]] * 3 + [[True, True]] * 13
    assert [each.tokens for each in passes[:4]] == [[10, 1], [1, 1], [1, 1], [1, 1]]
    assert columns["first_token_s"].tolist() == [pytest.approx(1 + 0.01 + 10e-5 + 10e-7)]
    assert len(steps[1]) == 0


def test_a_pass_begins_when_all_have_handed_over_and_takes_as_long_as_its_slowest_rank() -> None:
    ranks, steps, columns = replay_ranks(
        random_load(size=60, rate=30), model=SPARSE, data_parallel_size=3, num_blocks=30, max_model_len=384
    )
    assert ranks.lock_step is not None
    passes, before = ranks.lock_step.passes, 0
    for each in passes:
        assert each.meet == max(each.launched)
        assert each.start == max(each.meet, before)
        before = each.end
    of_steps = {round(1e12 * start) for frame in steps for start in frame["start"][frame["num_tokens"] > 0]}
    assert of_steps == {each.start for each in passes if not all(each.dummies)}
    for number, frame in enumerate(steps):
        computed = frame[frame["num_tokens"] > 0]
        mine = [each for each in passes if not each.dummies[number]]
        assert (1e12 * computed["step_s"]).round().tolist() == [each.ticks for each in mine]
        assert computed["num_tokens"].tolist() == [each.tokens[number] for each in mine]
    assert (columns["status"] == "finished").all()
    assert sum(frame["num_preempted"].sum() for frame in steps) > 0, "memory is meant to be short"


def test_ranks_whose_gpus_have_fewer_experts_have_more_blocks() -> None:
    """Of 128 experts two GPUs get 43 and the third 42; one is 3 · 2048 · 768 weights in 48 layers."""
    ranks, _, _ = replay_ranks(
        random_load(size=3),
        model="qwen3-30b-a3b",
        gpu="h100",
        data_parallel_size=3,
        enable_expert_parallel=True,
        max_model_len=4096,
    )
    blocks = [server.scheduler.memory.num_blocks for server in ranks.servers]
    assert blocks[0] == blocks[1]
    expert, block = 3 * 2048 * 768 * 2 * 48, 16 * 48 * 2 * 4 * 128 * 2
    assert blocks[2] - blocks[0] == pytest.approx(expert / block, abs=1)

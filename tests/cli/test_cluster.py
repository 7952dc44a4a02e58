"""``pagesim run --replicas``: replicas behind a router, in the terminal and in a folder."""

from __future__ import annotations

import pandas as pd

LOAD = (
    "--trace",
    "sharegpt",
    "--arrivals",
    "poisson",
    "--rate",
    "8",
    "--num-requests",
    "60",
    "--num-blocks",
    "300",
)


def test_a_cluster_is_stored_whole(succeeds, tmp_path):
    outcome = succeeds("run", *LOAD, "--replicas", "3", "--router", "least-loaded", "--out", tmp_path / "c")
    assert "3 replicas behind least-loaded" in outcome.out
    files = sorted(file.name for file in (tmp_path / "c").iterdir())
    assert files == ["manifest.json", "replicas.parquet", "requests.parquet", "scenario.toml", "summary.json"]
    requests = pd.read_parquet(tmp_path / "c" / "requests.parquet")
    replicas = pd.read_parquet(tmp_path / "c" / "replicas.parquet")
    assert requests["replica"].value_counts().sort_index().tolist() == replicas["requests"].tolist()
    again = succeeds("run", tmp_path / "c" / "scenario.toml", "--json").json
    assert again["cluster"]["router"] == "least-loaded"
    assert again["requests"]["finished"] == len(requests)


def test_a_router_that_is_not_there_is_refused(refused):
    assert refused("run", *LOAD, "--router", "psychic").startswith("router is 'psychic'; it must be one of")
    assert "replicas" in refused("run", *LOAD, "--replicas", "0")


def test_two_pools_are_stored_whole(succeeds, tmp_path):
    pools = ("--policy", "vllm-v1", "--prefill", "1", "--decode", "2", "--decode-router", "least-loaded")
    outcome = succeeds("run", *LOAD, *pools, "--link", "25GB/s:20us", "--out", tmp_path / "c")
    for shown in ("prefill: 1 replicas behind round-robin", "held for transfer", "landing"):
        assert shown in outcome.out
    files = {file.name for file in (tmp_path / "c").iterdir()}
    assert {"replicas.parquet", "steps.parquet"} <= files
    replicas = pd.read_parquet(tmp_path / "c" / "replicas.parquet")
    assert replicas["pool"].tolist() == ["prefill", "decode", "decode"]
    again = succeeds("run", tmp_path / "c" / "scenario.toml", "--json").json
    assert again["cluster"]["decode"]["router"] == "least-loaded"
    assert again["pulls"]["link_latency_s"] == 20e-6


def test_options_of_one_pool_and_of_two_do_not_go_together(refused):
    assert refused("run", *LOAD, "--prefill", "1").startswith("decode is left out")
    assert refused("run", *LOAD, "--lease", "10").startswith("prefill is left out")
    both = refused("run", *LOAD, "--prefill", "1", "--decode", "1", "--replicas", "3")
    assert both.startswith("replicas is 3, and prefill is 1")
    assert "must be one of" in refused(
        "run",
        *LOAD,
        "--policy",
        "vllm-v1",
        "--prefill",
        "1",
        "--decode",
        "1",
        "--decode-router",
        "psychic",
    )


def test_ranks_of_one_deployment_are_a_cluster_behind_vllms_own_balancer(succeeds, refused, tmp_path):
    sparse = ("--model", "mixtral-8x7b", "--cost", "affine:0.01,1e-5,1e-7", "--max-model-len", "4096")
    ranks = ("--data-parallel-size", "2")
    outcome = succeeds("run", *LOAD, *sparse, *ranks, "--out", tmp_path / "c")
    assert "2 replicas behind vLLM's internal load balancing" in outcome.out
    assert "forward passes of all replicas in" in outcome.out
    assert "data_parallel_size 2: what GPUs send each other for experts is not charged" in outcome.err
    again = succeeds("run", tmp_path / "c" / "scenario.toml", "--json").json
    assert again["cluster"]["lock_step"]["passes"] > again["iterations"] / 2
    assert again["requests"]["finished"] == 60
    assert "vLLM balances its ranks itself" in refused("run", *LOAD, *ranks, "--router", "least-loaded")
    both = refused("run", *LOAD, *ranks, "--policies", "vllm-v1,vllm-v0")
    assert both.startswith("policies and data_parallel_size do not go together")


def test_a_served_line_of_several_ranks_makes_a_cluster(succeeds):
    line = "vllm serve mistralai/Mixtral-8x7B-v0.1 -dp 2 -ep --max-model-len 4096"
    outcome = succeeds("run", *LOAD[:-2], "--serve", line, "--gpu", "h200", "--json").json
    assert outcome["cluster"]["router"] == "vLLM's internal load balancing"
    assert outcome["options"]["given"]["enable_expert_parallel"] is True

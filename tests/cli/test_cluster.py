"""``pagesim cluster``: replicas behind a router, in the terminal and in a folder."""

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
    outcome = succeeds(
        "cluster", *LOAD, "--replicas", "3", "--router", "least-loaded", "--out", tmp_path / "c"
    )
    assert "3 replicas behind least-loaded" in outcome.out
    files = sorted(file.name for file in (tmp_path / "c").iterdir())
    assert files == ["replicas.parquet", "requests.parquet", "scenario.toml", "summary.json"]
    requests = pd.read_parquet(tmp_path / "c" / "requests.parquet")
    replicas = pd.read_parquet(tmp_path / "c" / "replicas.parquet")
    assert requests["replica"].value_counts().sort_index().tolist() == replicas["requests"].tolist()
    again = succeeds("cluster", tmp_path / "c" / "scenario.toml", "--json").json
    assert again["cluster"]["router"] == "least-loaded"
    assert again["requests"]["finished"] == len(requests)


def test_a_router_that_is_not_there_is_refused(refused):
    assert refused("cluster", *LOAD, "--router", "psychic").startswith(
        "router is 'psychic'; it must be one of"
    )
    assert "replicas" in refused("cluster", *LOAD, "--replicas", "0")

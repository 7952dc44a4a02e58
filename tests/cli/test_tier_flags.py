"""``--tier``: a chain of tiers on the command line, in a file, in a stored result and in a grid."""

from __future__ import annotations

import json

import pandas as pd
import pytest

RUN = (
    *("run", "--policy", "vllm-v1", "--model", "llama-3.1-8b", "--gpu", "h100", "--cost", "roofline"),
    *("--trace", "fixed:512,8", "--shared-prefix", "400", "--rate", "50", "--num-requests", "30"),
    *("--num-blocks", "100", "--max-model-len", "1000"),
)
CHAIN = ("--tier", "host:0.2GiB:25GB/s", "--tier", "ssd:1GiB:6GB/s:3GB/s")


def test_tiers_are_flags_fields_of_a_file_and_part_of_a_stored_result(succeeds, tmp_path):
    said = succeeds(*RUN, *CHAIN, "--out", tmp_path / "out").out
    assert "Tiers, GiB" in said
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert list(summary["tiers"]) == ["host", "ssd"]
    assert summary["tiers"]["host"]["chunks"]["stored"] > 0
    assert summary["options"]["given"]["tiers"] == ["host:0.2GiB:25GB/s", "ssd:1GiB:6GB/s:3GB/s"]
    stored = tmp_path / "out" / "scenario.toml"
    assert 'tiers = ["host:0.2GiB:25GB/s", "ssd:1GiB:6GB/s:3GB/s"]\n' in stored.read_text()
    again = succeeds("run", stored, "--json").json
    assert again["tiers"] == summary["tiers"]
    one = succeeds("run", stored, "--tier", "host:1GiB", "--json").json
    assert list(one["tiers"]) == ["host"]


@pytest.mark.slow
def test_a_grid_has_a_chain_a_value(succeeds, tmp_path):
    grid = "tiers=host:0.2GiB,host:0.2GiB+ssd:1GiB"
    flags = [flag if flag != "run" else "sweep" for flag in RUN]
    succeeds(*flags, "--grid", grid, "--out", tmp_path / "sweep")
    runs = pd.read_parquet(tmp_path / "sweep" / "runs.parquet")
    assert runs["tiers"].tolist() == ["host:0.2GiB", "host:0.2GiB+ssd:1GiB"]
    assert (runs["tiers.host.chunks.stored"] > 0).all()
    assert succeeds("sweep", tmp_path / "sweep" / "sweep.toml").code == 0, "what is stored is read again"


def test_a_tier_is_for_vllm_v1(refused):
    said = refused("run", "--policy", "vllm-sosp", "--trace", "fixed:10,10", "--tier", "host:1GiB")
    assert "choose policy vllm-v1" in said

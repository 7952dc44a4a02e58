"""A result can be made again, byte for byte, from the scenario that is stored with it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pagesim.setup.scenario import Cluster, Comparison, Scenario

LOAD = ("--rate", "6", "--duration", "8", "--num-blocks", "300", "--seed", "3")

CASES = {
    "vllm": ("--trace", "sharegpt", *LOAD, "--n", "2", "--window", "2:6", "--until", "20"),
    "orca": ("--trace", "azure-conv", "--num-requests", "50", "--policy", "orca-pow2"),
    "static": ("--trace", "alpaca", *LOAD, "--policy", "static", "--max-batch", "4"),
    "pages": ("--trace", "sharegpt", *LOAD, "--policy", "virtual-contiguous", "--page-size", "64K"),
    "tokens": ("--trace", "sharegpt", *LOAD, "--policy", "token-granular"),
    "an iteration a row": ("--trace", "sharegpt", *LOAD, "--steps"),
    "mixed": (
        *("--trace", "lognormal:100,1,50,1", *LOAD, "--scheduler", "orca"),
        *("--reservation", "oracle", "--allocator", "best-fit", "--no-fast-forward"),
    ),
}


def files(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file of a result; a summary without what the simulator says of itself.

    The manifest, which has hashes of summaries, is left out.
    """
    return {
        str(file.relative_to(folder)): _without_sim(file)
        if file.name == "summary.json"
        else file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name != "manifest.json"
    }


def _without_sim(file: Path) -> bytes:
    summary = json.loads(file.read_text())
    for one in summary.get("runs", {"": summary}).values():
        assert one.pop("sim")
    return json.dumps(summary).encode()


@pytest.mark.slow_but("vllm", "an iteration a row")
@pytest.mark.parametrize("case", CASES)
def test_a_run_is_made_again_from_its_own_scenario(case, succeeds, tmp_path, monkeypatch):
    first, second = tmp_path / "first", tmp_path / "elsewhere" / "second"
    succeeds("run", *CASES[case], "--out", first)
    second.parent.mkdir()
    monkeypatch.chdir(second.parent)
    succeeds("run", first / "scenario.toml", "--out", "second")
    assert files(first) == files(second)
    assert {"scenario.toml", "requests.parquet", "steps.parquet", "memory.png", "memory.svg"} <= set(
        files(first)
    )


def test_a_comparison_is_made_again_from_its_own_scenario(succeeds, tmp_path):
    policies = ("--policies", "static,orca-max,vllm-sosp", "--max-batch", "4", "--steps")
    succeeds("run", "--trace", "sharegpt", *LOAD, *policies, "--out", tmp_path / "first")
    succeeds("run", tmp_path / "first" / "scenario.toml", "--out", tmp_path / "second")
    assert files(tmp_path / "first") == files(tmp_path / "second")
    assert {"memory.svg", "static/batches.parquet", "vllm-sosp/scenario.toml"} <= set(
        files(tmp_path / "first")
    )


@pytest.mark.slow_but("vllm-sosp")
@pytest.mark.parametrize("policy", ["static", "orca-max", "vllm-sosp"])
def test_a_policy_of_a_comparison_is_made_again_by_a_run(policy, succeeds, tmp_path):
    flags = ("--policies", "static,orca-max,vllm-sosp", "--max-batch", "4", "--preemption", "swap")
    succeeds("run", "--trace", "sharegpt", *LOAD, *flags, "--out", tmp_path / "c")
    succeeds("run", tmp_path / "c" / policy / "scenario.toml", "--out", tmp_path / "r")
    compared, made = files(tmp_path / "c" / policy), files(tmp_path / "r")
    assert compared == {name: made[name] for name in compared}


@pytest.mark.slow
def test_files_that_were_named_relative_to_one_folder_are_found_from_another(
    succeeds, tmp_path, monkeypatch, trace_file
):
    trace_file("a,0.5,300,20\nb,1.25,40,90\n", "mine.csv")
    config = {
        "model_type": "opt",
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "ffn_dim": 3072,
        "vocab_size": 50272,
        "max_position_embeddings": 2048,
        "word_embed_proj_dim": 768,
    }
    (tmp_path / "model.json").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    succeeds("run", "--trace", "mine.csv", "--model", "model.json", "--num-blocks", "99", "--out", "first")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    succeeds("run", "../first/scenario.toml", "--out", "second")
    assert files(tmp_path / "first") == files(tmp_path / "elsewhere" / "second")


def test_a_trace_may_lie_beside_the_scenario_that_names_it(succeeds, tmp_path, monkeypatch, trace_file):
    trace_file("a,0,10,10\n", "mine.csv")
    (tmp_path / "s.toml").write_text('trace = "mine.csv"\n')
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert succeeds("run", "../s.toml", "--json").json["requests"]["total"] == 1
    trace_file("a,0,10,10\nb,0,10,10\n", "elsewhere/mine.csv")
    assert succeeds("run", "../s.toml", "--json").json["requests"]["total"] == 2, "the nearer one wins"


def test_a_file_called_like_a_workload_does_not_take_its_place(succeeds, tmp_path, monkeypatch, trace_file):
    trace_file("a,0,10,10\n", "alpaca")
    monkeypatch.chdir(tmp_path)
    flags = ("--num-requests", "7", "--json")
    assert succeeds("run", "--trace", "alpaca", *flags).json["requests"]["total"] == 7
    assert succeeds("run", "--trace", "./alpaca", "--json").json["requests"]["total"] == 1


@pytest.mark.slow
def test_one_seed_gives_one_result_in_every_process(in_a_process, tmp_path):
    for hash_seed in ("1", "2"):
        outcome = in_a_process(
            *("run", "--trace", "sharegpt", *LOAD, "--policies", "static,vllm-sosp"),
            *("--out", tmp_path / hash_seed),
            env={"PYTHONHASHSEED": hash_seed},
        )
        assert outcome.code == 0, outcome.err
    assert files(tmp_path / "1") == files(tmp_path / "2")


def test_another_seed_gives_another_result(succeeds, tmp_path):
    for seed in ("0", "1"):
        succeeds("run", "--trace", "sharegpt", *LOAD, "--seed", seed, "--out", tmp_path / seed)
    assert files(tmp_path / "0")["requests.parquet"] != files(tmp_path / "1")["requests.parquet"]


def test_a_scenario_may_be_replaced_by_its_own_result(succeeds, tmp_path):
    out = tmp_path / "out"
    succeeds("run", "--trace", "sharegpt", *LOAD, "--out", out)
    before = files(out)
    succeeds("run", out / "scenario.toml", "--out", out)
    assert files(out) == before


def test_a_flag_wins_over_the_file(succeeds, tmp_path):
    file = tmp_path / "s.toml"
    file.write_text('trace = "fixed:10,10"\nnum_requests = 5\npolicy = "orca-max"\nsteps = true\n')
    from_file = succeeds("run", file, "--json").json
    assert (from_file["policy"], from_file["requests"]["total"]) == ("orca-max", 5)
    summary = succeeds(
        "run", file, "--num-requests", "6", "--no-steps", "--json", "--out", tmp_path / "o"
    ).json
    assert (summary["policy"], summary["requests"]["total"]) == ("orca-max", 6)
    stored = (tmp_path / "o" / "scenario.toml").read_text()
    assert "num_requests = 6\n" in stored
    assert "steps = false\n" in stored


def test_every_field_of_a_scenario_is_a_flag_or_an_option_of_an_engine(succeeds):
    shown = re.findall(r"^  --([a-z][a-z0-9-]*)", succeeds("run", "--help").out, re.MULTILINE)
    listed = re.findall(r"^ *--([a-z][a-z0-9-]*)", succeeds("list", "options").out, re.MULTILINE)
    # A server's line stands for the flags that it holds; these are of engines and of no scheduler.
    unlisted = {"flashinfer_sampler", "kv_offloading_link", "page_size"}
    unlisted |= {"max_loras", "max_lora_rank", "cpu_offload_gb"}
    unlisted |= {"language_model_only", "skip_mm_profiling", "max_pixels", "kv_cache_memory_bytes"}
    fields_of = {"num-samples": "n", "frontend-latency": "frontend"}
    flags = {fields_of.get(flag, flag.replace("-", "_")) for flag in (*shown, *listed)} | unlisted
    fields = {*Scenario.model_fields, *Comparison.model_fields, *Cluster.model_fields}
    assert flags - fields == {"out", "json", "serve", "trace_events", "help", *LIVE}
    assert fields <= flags


LIVE = ("device", "cuda_graphs", "swap", "check")


@pytest.mark.slow
def test_figures_hold_no_date_and_no_machine(succeeds, tmp_path):
    succeeds("run", "--trace", "sharegpt", *LOAD, "--out", tmp_path / "r")
    succeeds("run", "--trace", "sharegpt", *LOAD, "--policies", "vllm-sosp", "--out", tmp_path / "c")
    figures = [*tmp_path.rglob("*.svg"), *tmp_path.rglob("*.png")]
    assert len(figures) == 2 + 6
    for figure in figures:
        content = figure.read_bytes()
        assert b"<dc:date>" not in content
        assert b"tIME" not in content
        assert b"tEXt" not in content
        assert str(tmp_path).encode() not in content

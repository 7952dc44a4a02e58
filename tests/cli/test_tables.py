"""The tables of a result folder have the columns of the golden logs, and the rows that were asked for."""

from __future__ import annotations

import re

import pandas as pd
import pytest

SMALL = ("--trace", "sharegpt", "--rate", "4", "--duration", "10", "--num-blocks", "300")

REQUESTS = [
    "request_id",
    "arrival_s",
    "prompt_tokens",
    "output_tokens",
    "n",
    "first_scheduled_s",
    "first_token_s",
    "finish_s",
    "cached_tokens",
    "recomputes",
    "swaps",
    "status",
]
STEPS = [
    "step",
    "clock",
    "num_running",
    "num_running_seqs",
    "num_waiting",
    "num_swapped",
    "free_gpu_blocks",
    "free_cpu_blocks",
    "num_batched_tokens",
    "num_tokens",
    "sum_context_tokens",
    "step_s",
    "blocks_swapped_in",
    "blocks_swapped_out",
    "blocks_copied",
    "num_preempted",
]
LEDGER = ["used", "reserved", "unused_reservation", "rounding", "external", "cached", "free"]
BATCHES = ["clock", "queue_len", "batch", "max_input", "max_output", "sum_input", "sum_output", "batch_s"]


@pytest.fixture
def stored(succeeds, tmp_path):
    """Return a function that runs with these flags and returns the summary and a table's reader."""

    def run(*flags):
        summary = succeeds("run", *SMALL, *flags, "--out", tmp_path / "out", "--json").json
        return summary, lambda name: pd.read_parquet(tmp_path / "out" / f"{name}.parquet")

    return run


@pytest.mark.parametrize("policy", ["static", "orca-max", "vllm-sosp"])
def test_a_request_is_a_row(policy, stored):
    summary, table = stored("--policy", policy)
    requests = table("requests")
    assert requests.columns.tolist() == REQUESTS
    assert len(requests) == summary["requests"]["total"]
    assert requests["arrival_s"].is_monotonic_increasing
    assert set(requests["status"]) == {"finished"}


@pytest.mark.slow_but("static", "vllm-sosp")
@pytest.mark.parametrize("policy", ["static", "orca-max", "vllm-sosp"])
def test_with_steps_an_iteration_is_a_row(policy, stored):
    summary, table = stored("--policy", policy, "--steps")
    steps = table("steps")
    assert [name for name in steps.columns if name in STEPS] == STEPS
    assert "iterations" not in steps
    assert steps["step"].tolist() == list(range(summary["iterations"]))
    assert (steps[LEDGER].sum(axis=1) == 300 * 16).all()
    assert steps["num_running"].mean() == pytest.approx(summary["batch"]["mean"])


@pytest.mark.slow_but("vllm-sosp")
@pytest.mark.parametrize("policy", ["static", "orca-max", "vllm-sosp"])
def test_without_steps_a_row_stands_for_several_iterations(policy, stored):
    summary, table = stored("--policy", policy)
    steps = table("steps")
    assert steps["iterations"].sum() == summary["iterations"] > len(steps)
    assert steps["step"].tolist() == [0, *steps["iterations"].cumsum()[:-1]]
    assert (steps[LEDGER].sum(axis=1) == 300 * 16).all()


def test_only_static_batches_have_a_table_of_batches(stored):
    summary, table = stored("--policy", "static")
    batches = table("batches")
    assert batches.columns.tolist() == BATCHES
    assert batches["batch"].sum() == summary["requests"]["finished"]
    assert (batches["queue_len"] >= batches["batch"]).all()
    stored("--policy", "vllm-sosp")
    with pytest.raises(FileNotFoundError):
        table("batches")


def test_a_comparison_is_drawn_as_bars_in_the_terminal(succeeds):
    out = succeeds("run", "--num-requests", "30", "--policies", "orca-max,vllm-sosp").out
    bars = [line.split() for line in out.splitlines() if "█" in line and "used" not in line]
    assert [name for name, _ in bars] == ["orca-max", "vllm-sosp"]
    assert all(len(bar) == 50 for _, bar in bars)
    assert "x unused reservation" in out


def test_many_policies_are_printed_in_several_tables_and_no_digit_is_cut_off(succeeds, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    policies = "static,contiguous-max,orca-max,orca-pow2,orca-oracle,vllm-sosp,vllm-v0,vllm-v1,token-granular"
    printed = succeeds("run", *SMALL, "--policies", policies).out
    used = [line.split()[1:] for line in printed.splitlines() if line.startswith("  used  ")]
    assert len(used) > 1
    assert sum(map(len, used)) == len(policies.split(","))
    assert all(0 < float(number) <= 100 for line in used for number in line)
    assert "…" not in printed
    assert max(map(len, printed.splitlines())) <= 80


@pytest.mark.slow
def test_the_demo_is_the_comparison_that_it_names(cli, tmp_path):
    shown = cli("demo", "--out", tmp_path / "demo")
    assert shown.code == 0
    said = shown.err.splitlines()[0].removeprefix("note: this is pagesim ").split()
    *compared, last = shown.out.splitlines(keepends=True)
    assert cli(*said).out == "".join(compared)
    assert last.startswith(f"{tmp_path / 'demo.html'}: contiguous max-length, buddy, paged")
    assert (tmp_path / "demo" / "memory.png").exists()
    assert "One load, three allocators" in (tmp_path / "demo.html").read_text("utf-8")


def test_a_comparison_is_printed_without_escapes(succeeds):
    flags = ("--trace", "fixed:50,10", "--num-requests", "5", "--rate", "1")
    said = succeeds("run", *flags, "--policies", "orca-max,vllm-sosp").out
    assert "█ used" in said
    assert "\\" not in said


def test_kv_groups_have_columns_and_a_table_of_their_own(succeeds, tmp_path):
    flags = ("--policy", "vllm-v1", "--gpu", "h200", "--num-blocks", "400")
    told = succeeds("run", *SMALL[:-2], *flags, "--model", "gpt-oss-20b", "--out", tmp_path / "out").out
    assert "By KV group" in told
    assert "window-128" in told
    assert "out of window" in told
    steps = pd.read_parquet(tmp_path / "out" / "steps.parquet")
    assert {"state", "out_of_window", "padding", "held_blocks_0", "held_blocks_1"} <= set(steps)
    plain = succeeds("run", *SMALL[:-2], *flags, "--model", "llama-3.1-8b").out
    assert "By KV group" not in plain
    assert "out-of-window" not in plain


def test_a_run_says_how_large_its_cache_is_and_what_share_of_prompts_was_found(succeeds, conversations):
    """Of two conversations' turns of 1, 2 and 3 · 512 tokens 0, 1 and 2 · 512 are cached."""
    load = ("run", "--model", "tiny", "--trace", conversations, "--num-requests", "6")
    sizes = {
        ("vllm-v1", "2001"): "32,000 tokens in 2,000 blocks of 16",  # one is vLLM's null block
        ("sglang", "32000"): "32,000 tokens in 32,000 blocks of 1",
    }
    for (policy, blocks), size in sizes.items():
        said = succeeds(*load, "--policy", policy, "--num-blocks", blocks).out
        assert "prefix hit rate 50.00 %" in said
        assert f"KV cache, % of {size}" in said
    load = (*load, "--num-blocks", "2000")
    said = succeeds(*load, "--no-enable-prefix-caching").out
    assert "prefix hit rate" not in said
    beside = succeeds(*load, "--policies", "vllm-v1,vllm-sosp").out
    assert re.search(r"prefix hit rate, % +50\.00 +–", beside)
    both = ("--model", "gpt-oss-20b", "--gpu", "h100", "--num-blocks", "2000")
    hybrid = succeeds("run", *both, "--trace", "fixed:100,10", "--rate", "1", "--num-requests", "2").out
    assert re.search(r"KV cache, % of [\d.]+ GiB in 1,999 blocks of 16 tokens", hybrid)


def test_requests_that_arrive_at_once_are_said_to_be_a_burst(succeeds):
    load = ("run", "--trace", "fixed:100,10", "--num-requests", "20")
    assert "all 20 requests arrive at once: " in succeeds(*load).err
    assert "arrive at once" not in succeeds(*load, "--rate", "2").err
    assert "arrive at once" not in succeeds(*load, "--max-concurrency", "4").err

"""Every flag of ``run`` and ``compare`` is there and does what it says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

HUB = "meta-llama/Llama-3.1-8B-Instruct"

LOAD = (
    *("--trace", "sharegpt", "--arrivals", "poisson", "--rate", "4", "--duration", "40"),
    *("--num-blocks", "300", "--cost", "affine:0.024,1e-4,8.2e-7"),
)
"""More requests than 300 blocks serve at ease, so that they queue and are preempted."""

Summary = dict[str, Any]

EFFECTS: dict[str, tuple[tuple[str, ...], Callable[[Summary, Summary], bool]]] = {
    "trace": (("--trace", "alpaca"), lambda new, old: new["latency"]["mean"] < old["latency"]["mean"]),
    "model": (
        ("--model", "opt-6.7b", "--cost", "roofline"),
        lambda new, old: new["tpot"]["mean"] < old["tpot"]["mean"],
    ),
    "gpu": (
        ("--gpu", "h200", "--cost", "roofline"),
        lambda new, old: new["tpot"]["mean"] < old["tpot"]["mean"],
    ),
    "block-size": (("--block-size", "32"), lambda new, old: new["memory"]["block_size"] == 32),
    "num-blocks": (("--num-blocks", "400"), lambda new, old: new["memory"]["num_blocks"] == 400),
    "cpu-blocks": (("--cpu-blocks", "7"), lambda new, old: new["memory"]["cpu_blocks"] == 7),
    "rate": (("--rate", "2"), lambda new, old: new["requests"]["total"] < 0.7 * old["requests"]["total"]),
    "duration": (
        ("--duration", "20"),
        lambda new, old: new["requests"]["total"] < 0.7 * old["requests"]["total"],
    ),
    "seed": (("--seed", "1"), lambda new, old: new["latency"] != old["latency"]),
    "arrivals": (("--arrivals", "constant"), lambda new, old: new["requests"]["total"] == 4 * 40),
    "num-requests": (("--num-requests", "10"), lambda new, old: new["requests"]["total"] == 10),
    "window": (
        ("--window", "10:20"),
        lambda new, old: new["batch"] != old["batch"] and new["latency"] == old["latency"],
    ),
    "until": (("--until", "30"), lambda new, old: new["requests"]["unfinished"] > 0),
    "cost": (
        ("--cost", "affine:0.048,1e-4,8.2e-7"),
        lambda new, old: new["tpot"]["p50"] > 1.8 * old["tpot"]["p50"],
    ),
    "max-model-len": (("--max-model-len", "500"), lambda new, old: new["requests"]["rejected"] > 0),
    "max-num-seqs": (("--max-num-seqs", "2"), lambda new, old: 1 < new["batch"]["mean"] <= 2),
    "max-num-batched-tokens": (
        ("--max-num-batched-tokens", "300"),
        lambda new, old: new["requests"]["rejected"] > 0,
    ),
    "n": (("--n", "2"), lambda new, old: new["sharing"]["saving"] > 0 == old["sharing"]["saving"]),
    "shared-prefix": (
        ("--shared-prefix", "900"),
        lambda new, old: new["memory"] != old["memory"] and new["requests"] != old["requests"],
    ),
    "preemption": (
        ("--preemption", "swap"),
        lambda new, old: new["preemptions"]["swap"] > 0 == old["preemptions"]["swap"],
    ),
    "watermark": (("--watermark", "0.5"), lambda new, old: new["batch"]["mean"] < old["batch"]["mean"]),
    "reservation": (
        ("--reservation", "max"),
        lambda new, old: new["memory"]["strict"]["per_iteration"]["unused_reservation"] > 10,
    ),
    "scheduler": (("--scheduler", "orca"), lambda new, old: new["latency"] != old["latency"]),
    "allocator": (
        ("--reservation", "oracle", "--allocator", "buddy"),
        lambda new, old: new["memory"]["strict"]["per_iteration"]["external"] > 0,
    ),
    "allocator virtual": (
        ("--allocator", "virtual", "--page-size", "256K"),
        lambda new, old: (new["memory"]["block_size"], new["memory"]["cpu_blocks"]) == (25, 0),
    ),
    "no-fast-forward": (("--no-fast-forward",), lambda new, old: new["latency"] == old["latency"]),
}


def result(summary: Summary) -> Summary:
    """Return a summary without what the simulator says of itself."""
    return {key: value for key, value in summary.items() if key != "sim"}


@pytest.mark.parametrize("flag", EFFECTS)
def test_a_flag_does_what_it_says_and_the_same_in_a_comparison(flag, succeeds):
    given, does = EFFECTS[flag]
    run = ("run", *LOAD, "--policy", "vllm-sosp", "--json")
    old = succeeds(*run).json
    new = succeeds(*run, *given).json
    assert does(new, old)
    compared = succeeds("run", *LOAD, *given, "--policies", "vllm-sosp", "--json").json
    assert result(compared["runs"]["vllm-sosp"]) == result(new)


def test_a_model_and_a_gpu_determine_the_number_of_blocks(succeeds):
    def blocks(*flags: str) -> int:
        run = ("run", "--policy", "vllm-sosp", "--trace", "fixed:10,10", "--num-requests", "1", "--json")
        outcome = succeeds(*run, *flags)
        return outcome.json["memory"]["num_blocks"]

    assert blocks("--model", "opt-13b", "--gpu", "a100-40gb") == 983
    assert blocks("--gpu", "a100-80gb") > 2 * 983
    assert blocks("--tensor-parallel-size", "2") > 2 * 983
    assert blocks("--kv-cache-dtype", "fp8") > 1.9 * 983
    assert blocks("--sizing", "vllm", "--gpu-memory-utilization", "0.8") < blocks("--sizing", "vllm") < 983


@pytest.mark.parametrize(
    ("other", "shown"),
    [
        (("--tp=2",), ("--tensor-parallel-size", "2")),
        (("--kv-dtype", "fp8"), ("--kv-cache-dtype", "fp8")),
        (("--num-gpu-blocks-override", "300"), ("--num-blocks", "300")),
        (("--no-prefix-caching",), ("--no-enable-prefix-caching",)),
        (("--chunked-prefill",), ("--enable-chunked-prefill",)),
        (("--no-reserve-full-isl",), ("--no-scheduler-reserve-full-isl",)),
    ],
)
def test_a_flag_is_taken_in_another_spelling_that_help_does_not_show(other, shown, succeeds, monkeypatch):
    run = ("run", "--policy", "vllm-v1", "--num-requests", "20", "--json")
    assert result(succeeds(*run, *other).json) == result(succeeds(*run, *shown).json)
    monkeypatch.setenv("COLUMNS", "200")
    shows = (succeeds(*command).out for command in (("run", "--help"), ("list", "options", "vllm-v1")))
    words = " ".join(shows).replace(",", " ").replace("/", " ").split()
    assert other[0].partition("=")[0] not in words
    assert shown[0].replace("--no-", "--") in words


def test_a_serve_line_is_run_as_its_options_are(succeeds, tmp_path):
    run = ("run", "--trace", "fixed:50,20", "--num-requests", "9", "--gpu", "h100", "--json")
    line = f"vllm serve {HUB} --max-model-len 32k -tp 2 --port 80"
    served = succeeds(*run, "--serve", line, "--out", tmp_path / "served")
    assert "of the vllm serve 0.33.0 line without an effect here: --port" in served.err
    options = ("--policy", "vllm-v1", "--model", "llama-3.1-8b", "--max-model-len", "32000", "--tp", "2")
    assert result(served.json) == result(succeeds(*run, *options, "--vllm-version", "0.33.0").json)
    again = succeeds("run", tmp_path / "served" / "scenario.toml", "--json")
    assert result(again.json) == result(served.json)


def test_a_line_of_sglangs_server_is_run_as_its_options_are(succeeds, tmp_path):
    run = ("run", "--trace", "fixed:50,20", "--num-requests", "9", "--gpu", "h100", "--json")
    flags = "--tp 2 --page-size 16 --max-total-tokens 64k --context-length 4096 --port 80"
    line = f"python -m sglang.launch_server --model-path {HUB} {flags}"
    served = succeeds(*run, "--serve", line, "--out", tmp_path / "served")
    assert "of the SGLang 0.5.23 line without an effect here: --port" in served.err
    assert "cut to max_total_tokens 64,000" in served.err
    options = ("--policy", "sglang", "--model", "llama-3.1-8b", "--tp-size", "2", "--block-size", "16")
    written = succeeds(*run, *options, "--max-total-tokens", "64000", "--context-length", "4096")
    assert result(served.json) == result(written.json)
    again = succeeds("run", tmp_path / "served" / "scenario.toml", "--json")
    assert result(again.json) == result(served.json)


def test_the_default_policy_is_vllm_as_its_release_serves(succeeds):
    run = ("run", "--gpu", "h100", "--model", "llama-3.1-8b", "--num-requests", "9", "--json")
    summary = succeeds(*run).json
    assert summary["policy"] == "vllm-v1"
    # vLLM 0.33.0 on an H100, `engine/arg_utils.py`: 8192 tokens, 1024 sequences.
    taken = summary["options"]["defaults"]
    assert (taken["vllm_version"], taken["max_num_batched_tokens"]) == ("0.33.0", 8192)
    assert (taken["max_num_seqs"], taken["enable_prefix_caching"]) == (1024, True)
    assert taken["async_scheduling"] is True
    line = ("run", "--gpu", "h100", "--num-requests", "9", "--json", "--serve", f"vllm serve {HUB}")
    served = result(succeeds(*line).json)
    # The line says its release, and everything else is the same.
    assert {**served, "options": None} == {**result(summary), "options": None}
    options = served["options"]
    assert options["given"] | options["defaults"] == summary["options"]["given"] | taken
    assert succeeds("run", *LOAD, "--policy", "orca-max", "--json").json["policy"] == "orca-max"


def test_a_comparison_gives_an_option_to_the_policies_that_know_it(succeeds):
    flags = ("--max-batch", "3", "--preemption", "swap")
    policies = ("static", "orca-oracle", "vllm-sosp")
    runs = succeeds("run", *LOAD, *flags, "--policies", ",".join(policies), "--json").json["runs"]
    assert runs["static"]["batch"]["mean"] <= 3
    assert runs["vllm-sosp"]["preemptions"]["swap"] > 0
    assert result(runs["orca-oracle"]) == result(
        succeeds("run", *LOAD, "--policy", "orca-oracle", "--json").json
    )


def test_a_comparison_swaps_under_the_policies_that_can(succeeds):
    flags = ("--preemption", "swap", "--policies", "vllm-sosp,virtual-contiguous", "--json")
    runs = succeeds("run", *LOAD, *flags).json["runs"]
    assert runs["vllm-sosp"]["preemptions"]["swap"] > 0 == runs["vllm-sosp"]["preemptions"]["recompute"]
    assert runs["virtual-contiguous"]["preemptions"]["recompute"] > 0


def test_a_comparison_gives_a_size_to_the_policies_that_leave_the_choice(succeeds):
    flags = ("--block-size", "32", "--page-size", "64K", "--cpu-blocks", "50")
    policies = ("vllm-sosp", "token-granular", "virtual-contiguous")
    runs = succeeds("run", *LOAD, *flags, "--policies", ",".join(policies), "--json").json["runs"]
    # 300 blocks of 32 tokens, in each policy's own blocks: the same memory for all.
    memories = [runs[policy]["memory"] for policy in policies]
    assert [m["block_size"] for m in memories] == [32, 1, 6]
    assert [m["num_blocks"] for m in memories] == [300, 9600, 1500]
    assert [m["cpu_blocks"] for m in memories] == [50, 1600, 0]
    alone = ("--policy", "virtual-contiguous", "--page-size", "64K", "--num-blocks", "1500", "--json")
    assert result(runs["virtual-contiguous"]) == result(succeeds("run", *LOAD, *alone).json)


def test_policies_may_be_listed_with_spaces(succeeds):
    compared = succeeds("run", *LOAD, "--policies", "orca-max, vllm-sosp", "--json").json
    assert list(compared["runs"]) == ["orca-max", "vllm-sosp"]


@pytest.mark.parametrize("flags", [(), ("--policies", "orca-max,vllm-sosp")])
def test_without_out_nothing_is_stored(flags, succeeds, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    succeeds("run", *LOAD, *flags, "--steps")
    assert list(tmp_path.iterdir()) == []

"""Rivals of vLLM's hybrid manager: the policies that a model with mixed layers can be compared under."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pagesim as ps
from pagesim.errors import PagesimError
from pagesim.models import model

LAYOUTS = Path(__file__).parents[1] / "golden" / "layouts"
GEMMA: dict[str, Any] = {
    "model": "gemma3-27b",
    "gpu": "h100",
    "max_model_len": 16384,
    "async_scheduling": False,
    "max_num_batched_tokens": 2048,
}


def load(size: int = 30, prompt: int = 4000, output: int = 50) -> ps.Trace:
    """Return requests of long prompts, all of them different, close behind one another."""
    return ps.Trace(np.arange(size) / 10, np.full(size, prompt), np.full(size, output))


AFFINE = "affine:0.01,1e-5,1e-8"
RIVALS = ["vllm-v1", "vllm-v1-no-hybrid", "jenga", "pool-per-type"]


def capacity_bytes(result: ps.Result) -> int:
    """Return the bytes of a run's cache; of one whose blocks are alike for all layers from its slots."""
    memory = result.summary["memory"]
    if "capacity_bytes" in memory:
        return memory["capacity_bytes"]
    return memory["num_blocks"] * memory["block_size"] * model("gemma3-27b").kv_bytes_per_token()


def test_what_a_policy_is_about_cannot_be_contradicted():
    with pytest.raises(PagesimError, match=r"disable_hybrid_kv_cache_manager is false; it must be true"):
        ps.simulate(load(), "vllm-v1-no-hybrid", disable_hybrid_kv_cache_manager=False, **GEMMA)
    agreeing = ps.simulate(load(3), "vllm-v1-no-hybrid", disable_hybrid_kv_cache_manager=True, **GEMMA)
    assert agreeing.summary["requests"]["finished"] == 3


def test_an_option_that_is_part_of_a_policy_needs_its_scheduler():
    with pytest.raises(PagesimError, match="policy vllm-v1-no-hybrid is about disable_hybrid"):
        ps.simulate(load(), "vllm-v1-no-hybrid", scheduler="vllm-v0", model="opt-13b")


def test_in_a_comparison_an_option_goes_to_the_policies_that_it_does_not_contradict():
    results = ps.compare(
        load(3), ["vllm-v1", "vllm-v1-no-hybrid"], disable_hybrid_kv_cache_manager=False, **GEMMA
    )
    given = [result.summary["options"]["given"] for result in results.values()]
    assert [options.get("disable_hybrid_kv_cache_manager") for options in given] == [False, None]


def test_states_cannot_be_kept_without_the_hybrid_manager():
    with pytest.raises(PagesimError, match=r"cannot be kept alike.*choose policy vllm-v1"):
        ps.simulate(load(), "vllm-v1-no-hybrid", model=str(LAYOUTS / "jamba-1.5-mini.toml"), gpu="h200")


@pytest.mark.parametrize("options", [{}, {"num_blocks": 2000}, {"num_blocks": 800, "block_size": 32}])
def test_rivals_are_compared_on_the_same_bytes(options):
    results = ps.compare(load(5), RIVALS, **GEMMA, **options)
    sizes = [capacity_bytes(result) for result in results.values()]
    # A null block and a rest of less than the largest block, a large page of Jenga's, are between them.
    large = 260 * 16 * 8192 * options.get("block_size", 16) // 16
    assert max(sizes) - min(sizes) < 2 * large


def test_numbers_of_blocks_are_of_all_layers_where_policies_are_compared():
    results = ps.compare(load(5), ["vllm-v1", "vllm-v1-no-hybrid"], num_blocks=2000, **GEMMA)
    blocks = [result.summary["memory"]["num_blocks"] for result in results.values()]
    assert blocks == [2000 * 62 // 10 - 1, 2000 - 1], "a block of vllm-v1 is one of ten layers"


def test_windows_that_are_given_back_leave_room_for_more_requests():
    results = ps.compare(load(), ["vllm-v1", "vllm-v1-no-hybrid"], num_blocks=1100, **GEMMA)
    hybrid, alike = (result.summary for result in results.values())
    assert hybrid["preemptions"]["recompute"] <= alike["preemptions"]["recompute"]
    assert hybrid["batch"]["mean"] > 1.5 * alike["batch"]["mean"]


# Memory of layer types


def test_a_large_page_of_jenga_is_the_least_common_multiple_of_all_types():
    memory = ps.simulate(load(2), "jenga", num_blocks=200, **GEMMA).summary["memory"]
    layer = 16 * 2 * 16 * 128 * 2  # a block of 16 tokens in one layer
    assert memory["capacity_bytes"] == 200 * 260 * layer, "52 windows and 10 full layers"
    assert memory["num_blocks"] == 200, "no null block"
    assert [group["filled_bytes"] for group in memory["groups"].values()] == [52 * layer, 10 * layer]


def test_jenga_has_no_padding_but_empty_small_pages():
    results = ps.compare(load(), ["vllm-v1", "jenga"], num_blocks=1100, **GEMMA)
    shares = [result.summary["memory"]["strict"]["per_iteration"] for result in results.values()]
    of_blocks, of_large_pages = (share["padding"] for share in shares)
    assert 0 < of_large_pages < of_blocks


def test_jenga_without_windows_is_paged_memory_without_a_null_block():
    options: dict[str, Any] = {"model": "opt-13b", "enable_prefix_caching": False}
    paged = ps.simulate(load(20, 500, 300), "vllm-v1", num_blocks=301, **options)
    two_level = ps.simulate(load(20, 500, 300), "jenga", num_blocks=300, **options)
    pools = ps.simulate(load(20, 500, 300), "pool-per-type", num_blocks=300, **options)
    assert paged.summary["preemptions"]["recompute"] > 0
    assert paged.requests.equals(two_level.requests)
    assert paged.requests.equals(pools.requests)


def test_pools_are_divided_as_one_longest_request_takes_them():
    options = {**GEMMA, "max_model_len": 8192}
    memory = ps.simulate(load(2), "pool-per-type", num_blocks=3000, **options).summary["memory"]
    # Windows: 1,023 tokens and 2,048 in flight in blocks of 16, and one more; full attention: all 8,192.
    windows, full = 52 * (-(-(1023 + 2048) // 16) + 1), 10 * 512
    assert memory["num_blocks"] == (
        3000 * 62 * windows // (windows + full) // 52 + 3000 * 62 * full // (windows + full) // 10
    )
    assert memory["capacity_bytes"] == 3000 * 62 * 16 * 2 * 16 * 128 * 2


def test_a_pool_that_is_out_stops_requests_while_another_one_has_room():
    short = load(60, 1000, 200)  # within a window: they need as many blocks in both types
    results = ps.compare(short, ["jenga", "pool-per-type"], num_blocks=1100, **GEMMA)
    jenga, pools = (result.summary for result in results.values())
    assert pools["batch"]["mean"] < jenga["batch"]["mean"]
    assert pools["memory"]["strict"]["per_iteration"]["free"] > 20


def test_states_take_a_page_a_sequence():
    mixed = str(LAYOUTS / "jamba-1.5-mini.toml")
    options: dict[str, Any] = {"model": mixed, "num_blocks": 400, "max_model_len": 8192, "cost": AFFINE}
    for policy in ("jenga", "pool-per-type"):
        result = ps.simulate(load(5, 500), policy, **options)
        assert result.summary["requests"]["finished"] == 5
        assert result.summary["memory"]["strict"]["per_iteration"]["state"] > 0


@pytest.mark.parametrize("policy", ["jenga", "pool-per-type"])
def test_rivals_do_not_cache_prefixes_and_say_so(policy):
    with pytest.raises(PagesimError, match="enable_prefix_caching is true; it must be false or left out"):
        ps.simulate(load(2), policy, enable_prefix_caching=True, **GEMMA)
    allocator = {"jenga": "two-level", "pool-per-type": "pools"}[policy]
    with pytest.raises(PagesimError, match=f"needs allocator paged, not {allocator}"):
        ps.simulate(load(2), "vllm-v1", allocator=allocator, **GEMMA)
    result = ps.simulate(load(2), policy, **GEMMA)
    assert any(note.startswith(f"{policy}: ") and "not cached" in note for note in result.notes)


@pytest.mark.parametrize("policy", ["jenga", "pool-per-type"])
def test_a_longest_request_that_does_not_fit_is_refused_with_one_that_does(policy):
    long = {**GEMMA, "max_model_len": 131072, "gpu_memory_utilization": 0.75}
    with pytest.raises(PagesimError, match="lower max_model_len to at most") as refused:
        ps.simulate(load(2), policy, **long)
    longest = int(str(refused.value).split("at most ")[1].split(",")[0])
    fits = ps.simulate(load(2, 300), policy, **{**long, "max_model_len": longest})
    assert fits.summary["requests"]["finished"] == 2


@pytest.mark.parametrize("scheduler", ["vllm-sosp", "vllm-v0", "orca", "static"])
def test_only_vllm_v1_asks_for_pages_of_layer_types(scheduler):
    with pytest.raises(PagesimError, match=f"needs scheduler vllm-v1, not {scheduler}"):
        ps.simulate(load(2), "vllm-sosp", scheduler=scheduler, allocator="pools")


@pytest.mark.parametrize("policy", ["jenga", "pool-per-type"])
def test_drafts_are_not_for_memory_of_layer_types(policy):
    drafts: dict[str, Any] = {"speculative_method": "ngram", "speculative_tokens": 2, "acceptance": 0.5}
    with pytest.raises(PagesimError, match="not for memory of layer types"):
        ps.simulate(load(2), policy, model="opt-13b", **drafts)


MINISTRAL = """max_model_len = 131072
hidden = 4096
ffn = 12288
vocab = 131072
heads = 32
layers = [
    { repeat = 9, of = [
        { kind = "full", kv_heads = 8, head_dim = 128 },
        { repeat = 3, kind = "window", kv_heads = 8, head_dim = 128, window = 32768 },
    ] },
]
"""


def test_long_requests_run_about_twice_as_many_at_once_under_jenga(tmp_path):
    # Fig. 15 of its paper: 5.39 against vLLM's 2.63, some 300 iterations against 600.
    (tmp_path / "ministral.toml").write_text(MINISTRAL)
    rng = np.random.default_rng(0)
    trace = ps.Trace(np.zeros(20), rng.integers(55_000, 110_001, 20), rng.integers(50, 101, 20))
    results = ps.compare(
        trace,
        ["vllm-v1-no-hybrid", "jenga"],
        model=str(tmp_path / "ministral.toml"),
        gpu="h100",
        num_blocks=264_000 // 16,
        enable_prefix_caching=False,
        async_scheduling=False,
        max_num_batched_tokens=8192,
    )
    alike, jenga = (result.summary for result in results.values())
    assert jenga["batch"]["mean"] / alike["batch"]["mean"] == pytest.approx(1.85, abs=0.02)
    assert (alike["iterations"], jenga["iterations"]) == (734, 398)
    waste = jenga["memory"]["strict"]["per_iteration"]
    assert waste["padding"] + waste["reserved"] + waste["rounding"] < 0.04

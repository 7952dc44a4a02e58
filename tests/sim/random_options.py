"""Options of random systems: drafts, tiers, second pools, and what holds prompts back."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

GOLDEN = Path(__file__).resolve().parent.parent / "golden"

UNEQUAL = GOLDEN / "layouts" / "toy-mixed.toml"
"""Windows of 200 in blocks twice as large as those of full attention."""

WINDOWS, STATES = GOLDEN / "sglang" / "window128.toml", GOLDEN / "sglang-today" / "states64.toml"
"""Layers for SGLang's two kinds of a second pool."""


def cadence(rnd: Random, options: dict[str, Any]) -> dict[str, Any]:
    if options["policy"] != "vllm-v1" or options.get("vllm_version", "0.33.0") != "0.33.0":
        return {}
    return {"prefill_schedule_interval": rnd.choice((2, 3, 8, 30))} if rnd.random() < 0.3 else {}


def delays_and_priorities(rnd: Random, options: dict[str, Any]) -> dict[str, Any]:
    """Return what holds prompts back under SGLang, priorities and limits of its queue."""
    if options["policy"] != "sglang" or rnd.random() < 0.4:
        return {}
    some: dict[str, Any] = {}

    def perhaps(name: str, *values: Any) -> None:
        if rnd.random() < 0.3:
            some[name] = rnd.choice(values)

    perhaps("scheduler_recv_interval", 2, 5, 30, 1500)
    perhaps("max_queued_requests", 1, 3)
    perhaps("min_free_slots_delay", 2, 5)
    perhaps("prefill_decode_interval", 1, 4, 20)
    perhaps("prefill_decode_interval_min_bs", 2, 3)
    if "disable_overlap_schedule" not in options:
        perhaps("enable_prefill_delayer", True)
        perhaps("prefill_delayer_queue_min_ratio", 0.5, 2.0)
    if options.get("schedule_policy", "fcfs") in ("fcfs", "lof"):
        perhaps("enable_priority_scheduling", True)
    return some


def drafts_of_sglang(rnd: Random, options: dict[str, Any]) -> dict[str, Any]:
    if options["policy"] != "sglang" or rnd.random() < 0.6:
        return {}
    algorithm, topk = rnd.choice(("EAGLE", "NEXTN", "NGRAM")), rnd.choice((1, 1, 3))
    drafts = {"speculative_algorithm": algorithm, "acceptance": rnd.choice((0.0, 0.5, 0.9))}
    if algorithm != "NGRAM":
        drafts |= {"speculative_num_steps": rnd.choice((1, 3)), "speculative_eagle_topk": topk}
    return {**drafts, "speculative_num_draft_tokens": rnd.choice((2, 4, 7))}


def second_pool(rnd: Random, options: dict[str, Any]) -> dict[str, Any]:
    """Return layers with a window or a recurrent state, which under SGLang have a pool of their own."""
    if options["policy"] != "sglang" or rnd.random() < 0.3:
        return {}
    page = options["block_size"]
    if rnd.random() < 0.5:
        most = options["num_blocks"] * page
        fit = [
            ratio for ratio in (0.3, 0.6, 1.0) if most * ratio > 128 + 2 * page
        ]  # SGLang starts with these
        return {"model": str(WINDOWS), "swa_full_tokens_ratio": rnd.choice(fit)} if fit else {}
    slots = rnd.choice((12, 20, 60))
    some = {
        "model": str(STATES),
        "max_mamba_cache_size": slots,
        "mamba_track_interval": rnd.choice((64, 256)),
    }
    if rnd.random() < 0.4 and page == 1:
        some["mamba_radix_cache_strategy"] = "no_buffer"
    return some


def tier_options(rnd: Random, options: dict[str, Any]) -> dict[str, Any]:
    """Return those of a tier on the host, where a system may have one."""
    is_newest = options["policy"] == "vllm-v1" and options.get("vllm_version", "0.33.0") == "0.33.0"
    if not is_newest or "speculative_method" in options or rnd.random() < 0.3:
        return {}
    one = {
        "kv_offloading_chunks": rnd.choice((0, 3, 20, 100, 1000)),
        "kv_offloading_eviction": rnd.choice(("lru", "arc")),
        "kv_offloading_link": rnd.choice(("10GB/s", "0.3GB/s:5ms", "30MB/s")),
    }
    how = {
        "kv_offloading_chunk_blocks": rnd.choice((1, 1, 2, 4)),
        "kv_offloading_threshold": rnd.choice((0, 0, 2)),
        "kv_offloading_prompt_only": rnd.random() < 0.7,
        "kv_offloading_load": rnd.choice(("always", "always", "auto")),
    }
    return {**how, "tiers": chain(rnd)} if rnd.random() < 0.5 else {**how, **one}


def model_options(rnd: Random, options: dict[str, Any]) -> dict[str, Any]:
    """Return those of a model whose windows have larger blocks, where a system with a tier may have one."""
    has_tier = "tiers" in options or "kv_offloading_chunks" in options
    if not has_tier or rnd.random() < 0.5:
        return {}
    return {"model": str(UNEQUAL), "num_blocks": 2 * options["num_blocks"]}


def chain(rnd: Random) -> list[str]:
    """Return one to three tiers."""
    tiers = []
    for name in ("host", "ssd", "far")[: rnd.randint(1, 3)]:
        words = [
            name,
            rnd.choice(("0GiB", "0.1GiB", "1GiB", "infGiB")),
            rnd.choice(("10GB/s", "0.3GB/s:0.1GB/s:5ms", "30MB/s", "infGB/s")),
            rnd.choice(("lru", "lru", "arc", "lru-chunk", "never")),
        ]
        if tiers:
            words += rnd.choice(([], ["exclusive"], ["direct"]))
        tiers.append(":".join(words))
    return tiers

"""Random ranks of attention decide as a program does that was written from SGLang's rules alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
import pytest

from pagesim.experiments.golden import compare_log
from tests.golden.test_sglang_rules import (
    as_log,
    flags_of,
    link_of,
    log_of,
    newer,
    random_knobs,
    random_options,
    random_trace,
    with_priorities,
)

__all__ = ["newer"]

RUNNER = Path(__file__).with_name("ranks_program.py")

MODELS = {2: "llama-3.1-8b", 3: "llama-3.2-3b", 4: "llama-3.1-8b", 8: "llama-3.1-8b"}
"""Models whose heads so many GPUs divide."""


def decided(
    driver: Path, options: dict[str, Any], size: int, graphs: int, trace: Path
) -> pd.DataFrame | None:
    """Return what the program decides, as a log; None where it stops by itself, as a pool is too small."""
    log = trace.with_name("log.json")
    log.unlink(missing_ok=True)
    flags = flags_of({**options, "dp_size": size, "prefill_graph_max_bs": graphs}, trace)
    command = [sys.executable, str(RUNNER), str(driver), str(log), *flags]
    subprocess.run(command, check=False, capture_output=True)
    rows = json.loads(log.read_text(encoding="utf-8")) if log.is_file() else []
    return as_log(rows) if rows else None


def with_more(rnd: Random, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with a host, with states or with drafts, or with the latter two."""
    kind, cost = rnd.choice(("host", "states", "drafts", "both")), rnd.choice((0.0, 1e-5, 1e-4))
    if kind == "host":
        policy = rnd.choice(("write_through", "write_through_selective"))
        left_out = ("disable_radix_cache", "ignore_eos")
        kept = {name: value for name, value in options.items() if name not in left_out}
        return {
            **kept,
            "enable_hierarchical_cache": True,
            "hicache_write_policy": policy,
            "d2h": cost,
            "h2d": cost,
        }
    if kind != "states":
        options = {name: value for name, value in options.items() if "delayer" not in name}
        steps = rnd.choice((1, 3, 5))
        options |= {
            "speculative_algorithm": rnd.choice(("EAGLE", "EAGLE3")),
            "speculative_num_steps": steps,
            "speculative_eagle_topk": 1,
            "speculative_num_draft_tokens": steps + 1,
            "accept_rate": rnd.choice((0.3, 0.8)),
        }
    if kind != "drafts":
        options |= {
            "max_mamba_cache_size": rnd.choice((20, 40, 80)),
            "mamba_chunk_size": rnd.choice((64, 128)),
            "mamba_track_interval": rnd.choice((64, 128, 256)),
        }
        options.pop("disable_overlap_schedule", None)
    return options


def compared(driver: Path, folder: Path, seed: int, *, more: bool = False) -> set[str] | None:
    """Compare random ranks with the program; return the kinds of their batches, None where it stops."""
    rnd = Random(seed)
    trace, steps = folder / "trace.csv", folder / "log.steps.parquet"
    random_trace(driver, trace, rnd, seed)
    options = random_options(rnd)
    if rnd.random() < 0.7:
        options |= random_knobs(rnd, options)
        with_priorities(trace, rnd)
    if "enable_prefill_delayer" in options:  # ranks that are deferred would not ask
        options.pop("prefill_decode_interval", None)
    size, graphs = rnd.choice((2, 3, 4, 8)), rnd.choice((0, 64, 2048))
    if more:
        options = with_more(rnd, options)
    chunk = options["chunked_prefill_size"]
    most = min(graphs, chunk // size) if chunk > 0 else graphs  # parallel_hook.py 340
    log = decided(driver, options, size, most, trace)
    if log is None:
        return None
    log.to_parquet(steps)
    graphed = {"cuda_graph_max_bs_prefill": graphs} if graphs else {"disable_prefill_cuda_graph": True}
    ranks = {"model": MODELS[size], "tensor_parallel_size": size, "attn_dp_size": size}
    cost = options.pop("d2h", None)
    options.pop("h2d", None)
    if "max_mamba_cache_size" in options:
        options["max_mamba_cache_size"] *= size
    log_of_ranks = log_of({**options, **graphed, **ranks}, trace, steps)
    if cost is not None:
        log_of_ranks.options["kv_offloading_link"] = link_of(cost, log_of_ranks.options)
    difference = compare_log(log_of_ranks, stepping=False).difference
    assert difference is None, f"seed {seed}, {size} ranks, {graphs}, {options}: {difference}"
    return set(log["mode"])


def test_some_ranks_decide_by_the_rules(newer: Path, tmp_path: Path) -> None:
    found = [compared(newer, tmp_path, seed) for seed in (1, 2)]
    assert {"idle", "turned", "prefill", "decode"} <= set().union(*[modes or set() for modes in found])


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_random_ranks_decide_by_the_rules(newer: Path, tmp_path: Path, part: int) -> None:
    found = [compared(newer, tmp_path, seed) for seed in range(8 * part, 8 * part + 8)]
    assert sum(modes is not None for modes in found) >= 5


@pytest.mark.slow_but("0")
@pytest.mark.parametrize("part", range(4))
def test_random_ranks_with_hosts_states_or_drafts_do(newer: Path, tmp_path: Path, part: int) -> None:
    found = [compared(newer, tmp_path, seed, more=True) for seed in range(1000 + 4 * part, 1004 + 4 * part)]
    assert any(modes is not None for modes in found)

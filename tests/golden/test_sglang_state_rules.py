"""Random systems with recurrent states decide as a program does that was written from SGLang's rules."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from pagesim.experiments.golden import compare_log
from tests.golden.test_sglang_rules import (
    decided,
    load,
    log_of,
    newer,
    random_knobs,
    random_options,
    random_trace,
    with_priorities,
)

__all__ = ["newer"]

PART = 4


def random_states(rnd: Random, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a pool of states, for a system of these options."""
    some: dict[str, Any] = {
        "max_mamba_cache_size": rnd.choice((12, 20, 40, 80, 200)),
        "mamba_chunk_size": rnd.choice((64, 64, 128, 256)),
        "mamba_track_interval": rnd.choice((256, 256, 128, 64, 512)),
    }
    strategies = ["auto", "extra_buffer"]
    if "disable_overlap_schedule" in options and options["page_size"] == 1:
        strategies += ["auto", "no_buffer"]
    some["mamba_radix_cache_strategy"] = rnd.choice(strategies)
    return some


def model_of(chunk: int, folder: Path) -> str:
    """Return a model some of whose layers keep a state, by its file."""
    file = folder / f"states{chunk}.toml"
    file.write_text(
        "max_model_len = 8192\n"
        f"layers = [{{ kind = 'state', conv = [3, 64], state = [2, 16, 16], kernel_chunk = {chunk} }},"
        "{ kind = 'full', kv_heads = 1, head_dim = 64 }]\n"
    )
    return str(file)


@pytest.mark.slow_but("0", "1")
@pytest.mark.parametrize("part", range(8))
def test_random_systems_with_states_decide_by_the_rules(
    newer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    common, mini = load(newer, monkeypatch, "mini_now")
    compared = evicting = 0
    for seed in range(part * PART, (part + 1) * PART):
        rnd = Random(seed)
        trace, steps = tmp_path / "trace.csv", tmp_path / "log.steps.parquet"
        random_trace(newer, trace, rnd, seed)
        options = random_options(rnd)
        if rnd.random() < 0.4:
            options |= random_knobs(rnd, options)
            with_priorities(trace, rnd)
        options |= random_states(rnd, options)
        log = decided(common, mini, options, trace)
        if log is None:
            continue
        compared += 1
        evicting += bool(log["evicted_states"].any())
        log.to_parquet(steps)
        golden = log_of(options, trace, steps)
        golden.options["model"] = model_of(golden.options.pop("mamba_chunk_size"), tmp_path)
        for stepping in (False, True):
            difference = compare_log(golden, stepping=stepping).difference
            assert difference is None, f"seed {seed}, {options}: {difference}"
    assert compared > PART / 2
    assert evicting or part > 1

"""Random systems with a tier on the host decide as a program does that was written from the rules alone."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from pagesim.experiments.golden import compare_log
from tests.golden.test_sglang_rules import (
    as_log,
    flags_of,
    link_of,
    load,
    log_of,
    newer,
    random_drafts,
    random_knobs,
    random_options,
    random_trace,
    with_priorities,
)

__all__ = ["newer"]


def random_host(rnd: Random) -> dict[str, Any]:
    """Return what a host has, under the program's names; both directions of its link are alike."""
    cost = rnd.choice((0.0, 1e-5, 1e-4, 1e-3))
    return {
        "enable_hierarchical_cache": True,
        "hicache_write_policy": rnd.choice(("write_through", "write_through_selective", "write_back")),
        "d2h": cost,
        "h2d": cost,
    }


def compared(driver: Path, folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, int] | None:
    """Compare a random system with the program; return what it did, None where that stops by itself."""
    rnd = Random(seed)
    common, mini = load(driver, monkeypatch, "mini_host")
    trace, steps = folder / "trace.csv", folder / "log.steps.parquet"
    random_trace(driver, trace, rnd, seed)
    options = {**random_options(rnd), **random_host(rnd)}
    for name in ("disable_radix_cache", "ignore_eos"):
        options.pop(name, None)
    if rnd.random() < 0.3:
        options |= random_drafts(rnd, options)
    elif rnd.random() < 0.5:
        options |= random_knobs(rnd, options)
        with_priorities(trace, rnd)
    ratio = rnd.choice((1.0, 1.2, 2.0, 4.0))
    capacity, page = options["max_total_tokens"], options["page_size"]
    on_host = {"hicache_host_tokens": (int(capacity * ratio) // page + 1) * page}
    asked = common.parser("").parse_args(flags_of(options | on_host, trace))
    try:
        log = as_log(mini.MiniHost(asked).go())
    except AssertionError:
        return None
    if log is None:
        return None
    log.to_parquet(steps)
    cost = options.pop("d2h")
    del options["h2d"]
    ours = log_of({**options, "hicache_ratio": ratio}, trace, steps)
    ours.options["kv_offloading_link"] = link_of(cost, ours.options)
    for stepping in (False, True):
        difference = compare_log(ours, stepping=stepping).difference
        assert difference is None, f"seed {seed}, {ours.options}: {difference}"
    names = ("written_tokens", "loaded_tokens", "num_retracted")
    return {name: int(log[name].sum()) for name in names}


def test_some_hosts_decide_by_the_rules(newer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [compared(newer, tmp_path, seed, monkeypatch) for seed in (4, 7)]
    assert all(did and did["written_tokens"] and did["loaded_tokens"] for did in found)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_random_hosts_decide_by_the_rules(
    newer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    seeds = range(10 * part, 10 * part + 10)
    found = [did for seed in seeds if (did := compared(newer, tmp_path, seed, monkeypatch)) is not None]
    assert len(found) > 5
    assert sum(did["loaded_tokens"] > 0 for did in found) > 1

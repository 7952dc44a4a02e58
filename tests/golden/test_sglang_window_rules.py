"""Random systems of two pools decide as a program does that has SGLang's rules of them."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from pagesim.experiments.golden import compare_log
from tests.golden.test_sglang_rules import as_log, load, log_of, program, random_options, random_trace
from tests.golden.windowed_rules import two_pools

__all__ = ["program"]

PART = 4


def random_pools(rnd: Random) -> tuple[dict[str, Any], int, float]:
    """Return the options of a system, a window, and the second pool as a share of the first one."""
    options = random_options(rnd)
    options["schedule_policy"] = options["schedule_policy"].replace("dfs-weight", "lpm")
    page = options["page_size"]
    if options["chunked_prefill_size"] > 0:
        options["chunked_prefill_size"] -= options["chunked_prefill_size"] % page
    window = rnd.choice((16, 48, 64, 128, 200, 300, 1000))
    return options, window, rnd.choice((0.8, 0.8, 0.5, 0.3, 1.0))


def model_of(window: int, folder: Path) -> str:
    file = folder / f"window{window}.toml"
    file.write_text(
        "max_model_len = 8192\n"
        f"layers = [{{ kind = 'window', kv_heads = 1, head_dim = 64, window = {window + 1} }},"
        "{ kind = 'full', kv_heads = 1, head_dim = 64 }]\n"
    )
    return str(file)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(5))
def test_random_systems_of_two_pools_decide_by_the_rules(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    common, mini = load(program, monkeypatch)
    loop = two_pools(mini)
    compared = retracting = 0
    for seed in range(part * PART, (part + 1) * PART):
        rnd = Random(seed)
        trace, steps = tmp_path / "trace.csv", tmp_path / "log.steps.parquet"
        random_trace(program, trace, rnd, seed)
        options, window, ratio = random_pools(rnd)
        page = options["page_size"]
        pool = int(options["max_total_tokens"] * ratio) // page * page
        if pool <= window + page:
            continue
        flags = [
            f"--{name.replace('_', '-')}={value}" for name, value in options.items() if value is not True
        ]
        flags += [f"--{name.replace('_', '-')}" for name, value in options.items() if value is True]
        asked = common.parser("").parse_args([f"--trace={trace}", *flags, "--max-steps=60000"])
        decided = loop(asked, window, pool)
        try:
            log = as_log(decided.go())
        except AssertionError:
            continue
        # That program's clock stands still until the next arrival where it has just given a request up.
        if log is None or (decided.given_up and not decided.overlap):
            continue
        compared += 1
        retracting += bool(log["num_retracted"].any())
        log.to_parquet(steps)
        golden = log_of(options, trace, steps)
        golden.options.update(model=model_of(window, tmp_path), swa_full_tokens_ratio=ratio)
        for stepping in (False, True):
            difference = compare_log(golden, stepping=stepping).difference
            assert difference is None, f"seed {seed}, {options}, {window}, {ratio}: {difference}"
    assert compared >= PART / 2
    assert retracting or part > 1

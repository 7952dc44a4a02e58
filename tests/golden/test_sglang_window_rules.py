"""Random systems of two pools decide as a program does that has SGLang's rules of them."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
import pytest

from tests.golden.test_sglang_rules import PART, as_log, compare, load, program, random_options
from tests.golden.windowed_rules import two_pools

__all__ = ["program"]


def with_windows(rnd: Random, seed: int, trace: Path) -> dict[str, Any]:
    """Return the options of a system, a window, and the second pool as a share of the first one."""
    options = random_options(rnd)
    options["schedule_policy"] = options["schedule_policy"].replace("dfs-weight", "lpm")
    page = options["page_size"]
    if options["chunked_prefill_size"] > 0:
        options["chunked_prefill_size"] -= options["chunked_prefill_size"] % page
    window, ratio = rnd.choice((16, 48, 64, 128, 200, 300, 1000)), rnd.choice((0.8, 0.8, 0.5, 0.3, 1.0))
    return {**options, "window": window, "swa_full_tokens_ratio": ratio}


@pytest.mark.slow
@pytest.mark.parametrize("part", range(5))
def test_random_systems_of_two_pools_decide_by_the_rules(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    common, mini = load(program, monkeypatch)
    loop = two_pools(mini)

    def decided(options: dict[str, Any], trace: Path) -> pd.DataFrame | None:
        asked_for = dict(options)
        window, ratio = asked_for.pop("window"), asked_for.pop("swa_full_tokens_ratio")
        page = options["page_size"]
        pool = int(options["max_total_tokens"] * ratio) // page * page
        if pool <= window + page:
            return None
        flags = [f"--{name.replace('_', '-')}={each}" for name, each in asked_for.items() if each is not True]
        flags += [f"--{name.replace('_', '-')}" for name, each in asked_for.items() if each is True]
        asked = common.parser("").parse_args([f"--trace={trace}", *flags, "--max-steps=60000"])
        run = loop(asked, window, pool)
        try:
            log = as_log(run.go())
        except AssertionError:
            return None
        # That program's clock stands still until the next arrival where it has just given a request up.
        return None if run.given_up and not run.overlap else log

    logs = compare(program, tmp_path, range(part * PART, (part + 1) * PART), with_windows, decided)
    assert len(logs) >= PART / 2
    assert any(log["num_retracted"].any() for log in logs) or part > 1

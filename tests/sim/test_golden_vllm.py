"""Released vLLM, iteration by iteration, against logs of its own schedulers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import pagesim as ps

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
TOLERANCE = 1e-9
COSTS = "affine:0.010,1e-5,1e-7"

V0 = {"num_blocks": 600, "cpu_blocks": 4000, "max_num_batched_tokens": 2560}
SMALL = {"num_blocks": 24, "cpu_blocks": 0, "max_num_batched_tokens": 2560}
V1 = {"num_blocks": 600, "cpu_blocks": 0}
RUNS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "v0_recompute": ("t300", "vllm-v0", {**V0, "compat": "0.2.7"}),
    "v0_020_recompute": ("t300", "vllm-v0", {**V0, "compat": "0.2.0"}),
    "v0_e1_prompt_gt_cache": ("e1_prompt_gt_cache", "vllm-v0", SMALL),
    "v0_e2_prompt_gt_limit": ("e2_prompt_gt_limit", "vllm-v0", {**SMALL, "max_model_len": 256}),
    "v0_e3_n4_partial_block": ("e3_n4_partial_block", "vllm-v0", SMALL),
    "v0_e3b_n4_full_block": ("e3b_n4_full_block", "vllm-v0", SMALL),
    "v1_330_default": ("t300", "vllm-v1", {**V1, "max_num_batched_tokens": 2560}),
    "v1_330_budget256": ("t300", "vllm-v1", {**V1, "max_num_batched_tokens": 256, "max_num_seqs": 24}),
}


def replay(name: str, *, leap: bool) -> ps.Result:
    trace, policy, options = RUNS[name]
    return ps.simulate(
        ps.make_trace(GOLDEN / f"{trace}.csv"), policy, steps="iterations", cost=COSTS, leap=leap, **options
    )


@pytest.mark.parametrize("leap", [True, False], ids=["leaping", "stepping"])
@pytest.mark.parametrize("name", RUNS)
def test_every_iteration_is_that_of_the_golden_log(
    first_difference: Callable[[pd.DataFrame, pd.DataFrame], str], name: str, leap: bool
) -> None:
    steps = replay(name, leap=leap).steps
    assert steps is not None
    assert not (message := first_difference(steps, pd.read_parquet(GOLDEN / f"{name}.steps.parquet"))), (
        message
    )


@pytest.mark.parametrize("name", RUNS)
def test_every_request_fares_as_in_the_golden_log(name: str) -> None:
    ours = replay(name, leap=True).requests
    theirs = pd.read_parquet(GOLDEN / f"{name}.requests.parquet")
    for column in ("arrival_s", "first_scheduled_s", "first_token_s", "finish_s"):
        np.testing.assert_allclose(ours[column], theirs[column], rtol=TOLERANCE, atol=TOLERANCE)
    for column in ("request_id", "prompt_tokens", "n", "recomputes", "swaps", "status"):
        assert (ours[column] == theirs[column]).all(), column

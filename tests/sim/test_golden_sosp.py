"""The paper's own schedulers, iteration by iteration, against logs of their code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import pagesim as ps

Compare = Callable[[pd.DataFrame, pd.DataFrame], str]

COSTS = "affine:0.024,1e-4,8.2e-7"
CLOCK_TOLERANCE = 1e-9

RUNS = {
    "fig2_vllm": (4.0, 900, 1, "vllm-sosp", {"num_blocks": 983, "until": 900.0}),
    "fig2_orca-max": (4.0, 900, 1, "orca-max", {"num_blocks": 983, "until": 900.0}),
    "fig2_orca-pow2": (4.0, 900, 1, "orca-pow2", {"num_blocks": 983, "until": 900.0}),
    "fig2_orca-oracle": (4.0, 900, 1, "orca-oracle", {"num_blocks": 983, "until": 900.0}),
    "block256_vllm_2.0": (2.0, 300, 1, "vllm-sosp", {"num_blocks": 61, "block_size": 256, "cpu_blocks": 102}),
    "n2_vllm_1.0": (1.0, 600, 2, "vllm-sosp", {"num_blocks": 983, "cpu_blocks": 1638}),
}


def replay(sharegpt: Path, name: str, *, leap: bool) -> ps.Result:
    rate, duration, samples, policy, options = RUNS[name]
    trace = ps.make_trace(sharegpt, arrivals="sosp", rate=rate, duration=duration)
    trace = trace.with_columns({"n": np.full(len(trace), samples)})
    arguments: dict[str, Any] = {"steps": "iterations", "cost": COSTS, "leap": leap, **options}
    return ps.simulate(trace, policy, **arguments)


@pytest.mark.parametrize("leap", [True, False], ids=["leaping", "stepping"])
@pytest.mark.parametrize("name", RUNS)
def test_every_iteration_is_that_of_the_golden_log(
    shared: Path, sharegpt: Path, first_difference: Compare, name: str, leap: bool
) -> None:
    result = replay(sharegpt, name, leap=leap)
    steps = pd.read_parquet(shared / "golden" / f"sosp_{name}.steps.parquet")
    assert result.steps is not None
    assert not (message := first_difference(result.steps, steps)), message


@pytest.mark.parametrize("name", RUNS)
def test_every_request_fares_as_in_the_golden_log(shared: Path, sharegpt: Path, name: str) -> None:
    ours = replay(sharegpt, name, leap=True).requests
    theirs = pd.read_parquet(shared / "golden" / f"sosp_{name}.requests.parquet")
    for column in ("arrival_s", "first_scheduled_s", "first_token_s", "finish_s"):
        np.testing.assert_allclose(ours[column], theirs[column], rtol=CLOCK_TOLERANCE, atol=CLOCK_TOLERANCE)
    for column in ("request_id", "prompt_tokens", "n", "recomputes", "swaps", "status"):
        assert (ours[column] == theirs[column]).all(), column
    assert (ours["output_tokens"] == theirs["output_tokens"].astype(int)).all()


def test_static_batches_are_those_of_the_golden_log(shared: Path, sharegpt: Path) -> None:
    trace = ps.make_trace(sharegpt, arrivals="sosp", rate=0.2, duration=3600)
    result = ps.simulate(trace, "static", max_batch=5, cost=COSTS, num_blocks=983)
    assert result.batches is not None
    theirs = pd.read_parquet(shared / "golden" / "sosp_ft_0.2.batches.parquet")
    pd.testing.assert_frame_equal(
        result.batches, theirs, check_dtype=False, rtol=CLOCK_TOLERANCE, atol=CLOCK_TOLERANCE
    )
    requests = pd.read_parquet(shared / "golden" / "sosp_ft_0.2.requests.parquet")
    np.testing.assert_allclose(result.requests["finish_s"], requests["finish_s"], rtol=CLOCK_TOLERANCE)
    np.testing.assert_allclose(
        result.requests["first_scheduled_s"], requests["batch_start"], rtol=CLOCK_TOLERANCE
    )

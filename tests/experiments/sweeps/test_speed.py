"""A sweep uses the cores that it is given."""

from __future__ import annotations

import time

import joblib
import pandas as pd
import pytest

import pagesim as ps

GRID = {
    "policy": ["orca-max", "orca-oracle", "vllm-sosp", "vllm-v0", "vllm-v1"],
    "rate": [1.0, 2.0, 3.0, 4.0],
}
RUNS = 5 * 4 * 10

AT_LEAST = 1.7
"""Runs under way on two cores, mean over the whole sweep, its beginning and its end included."""


@pytest.mark.slow
def test_two_hundred_runs_keep_two_cores_busy():
    if joblib.cpu_count() < 2:
        pytest.skip("needs two cores")
    took, tables = {}, {}
    for jobs in (1, 2):
        began = time.perf_counter()
        tables[jobs] = ps.sweep(grid=GRID, seeds=10, num_requests=4000, jobs=jobs)
        took[jobs] = time.perf_counter() - began
    assert len(tables[2].runs) == RUNS
    pd.testing.assert_frame_equal(tables[1].runs, tables[2].runs)
    # The ratio of the times is what a user sees; but whatever else the machine does meanwhile changes it. The
    # share of the time in which both workers replayed is the sweep's own doing.
    busy = tables[2].timings["sim.wall_s"].sum() / took[2]
    times = f"{took[1]:.1f} s on one core, {took[2]:.1f} s on two ({took[1] / took[2]:.2f}×)"
    print(f"{RUNS} runs: {times}; {busy:.2f} runs under way on two")
    assert busy >= AT_LEAST

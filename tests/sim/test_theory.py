"""A queue built from the simulator's parts has the waiting times that theory says."""

from __future__ import annotations

import numpy as np
import pytest

import pagesim as ps

STEP_S = 0.01
UTILISATION = 0.5


@pytest.mark.parametrize("policy", ["static", "orca-oracle", "vllm-sosp"])
def test_every_single_wait_follows_lindleys_recursion(policy: str) -> None:
    """From it the mean waits of M/D/1 and M/M/1 follow."""
    random = np.random.default_rng(9)
    outputs = random.integers(1, 60, 5000)
    gaps = random.exponential(STEP_S * float(outputs.mean()) / UTILISATION, len(outputs))
    trace = ps.Trace(np.cumsum(gaps), np.ones(len(outputs), int), outputs)
    limit = {"max_batch": 1} if policy == "static" else {"max_num_seqs": 1}
    result = ps.simulate(
        trace, policy, steps="none", num_blocks=1000, max_model_len=8000, cost=f"affine:{STEP_S},0,0", **limit
    )
    wait, expected = 0.0, []
    for gap, output in zip(np.append(gaps[1:], 0), outputs, strict=True):
        expected.append(wait)
        wait = max(0.0, wait + STEP_S * float(output) - gap)
    requests = result.requests
    assert (requests["status"] == "finished").all()
    np.testing.assert_allclose(requests["first_scheduled_s"] - requests["arrival_s"], expected, atol=1e-7)

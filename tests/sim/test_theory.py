"""Queues built from the simulator's parts have the waiting times that theory says."""

from __future__ import annotations

import numpy as np
import pytest

import pagesim as ps

STEP_S = 0.01
UTILISATION = 0.5

LOADS = [
    pytest.param((1,), 10_000, 0.1, id="one seed"),
    pytest.param((1, 2, 3, 4), 50_000, None, id="four seeds", marks=pytest.mark.slow),
]
"""Seeds, requests of each, and how far off a mean of so few may be; None where it is as far as ever."""


def waits(outputs: np.ndarray, policy: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return each request's wait for one server, ``STEP_S`` a token, and the gaps between arrivals."""
    service = STEP_S * float(outputs.mean())
    gaps = np.random.default_rng(seed).exponential(service / UTILISATION, len(outputs))
    trace = ps.Trace(np.cumsum(gaps), np.ones(len(outputs), int), outputs)
    limit = {"max_batch": 1} if policy == "static" else {"max_num_seqs": 1}
    result = ps.simulate(
        trace, policy, steps="none", num_blocks=1000, max_model_len=8000, cost=f"affine:{STEP_S},0,0", **limit
    )
    requests = result.requests
    assert (requests["status"] == "finished").all()
    return (requests["first_scheduled_s"] - requests["arrival_s"]).to_numpy(), gaps


@pytest.mark.parametrize(("seeds", "requests", "bound"), LOADS)
@pytest.mark.parametrize("policy", ["static", "orca-oracle", "vllm-sosp"])
def test_a_fixed_service_time_waits_as_m_d_1(
    policy: str, seeds: tuple[int, ...], requests: int, bound: float | None
) -> None:
    outputs = np.full(requests, 20)
    service = 20 * STEP_S
    mean = np.mean([waits(outputs, policy, seed)[0].mean() for seed in seeds])
    assert mean == pytest.approx(UTILISATION * service / (2 * (1 - UTILISATION)), rel=bound or 0.02)


@pytest.mark.parametrize(("seeds", "requests", "bound"), LOADS)
@pytest.mark.parametrize("policy", ["static", "orca-oracle", "vllm-sosp"])
def test_an_exponential_service_time_waits_as_m_m_1(
    policy: str, seeds: tuple[int, ...], requests: int, bound: float | None
) -> None:
    # Whole tokens make the service time geometric; at 60 tokens the two waits differ by less than 1 %.
    means = []
    for seed in seeds:
        outputs = np.ceil(np.random.default_rng(100 + seed).exponential(60, requests)).astype(int)
        means.append(waits(outputs, policy, seed)[0].mean())
    service = 60 * STEP_S
    assert np.mean(means) == pytest.approx(UTILISATION * service / (1 - UTILISATION), rel=bound or 0.04)


def test_every_single_wait_follows_lindleys_recursion() -> None:
    outputs = np.random.default_rng(9).integers(1, 60, 5000)
    got, gaps = waits(outputs, "vllm-sosp", seed=9)
    wait, expected = 0.0, []
    for gap, output in zip(np.append(gaps[1:], 0), outputs, strict=True):
        expected.append(wait)
        wait = max(0.0, wait + STEP_S * float(output) - gap)
    np.testing.assert_allclose(got, expected, atol=1e-7)

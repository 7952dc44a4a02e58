"""Clients that go away: their requests leave at once, wherever they are, and free what they hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pagesim as ps
from pagesim.errors import PagesimError

SECOND: dict[str, Any] = {"cost": "affine:1,0,0", "steps": "iterations", "watermark": 0.0}
POLICIES = ("orca-oracle", "vllm-sosp", "vllm-v0", "vllm-v1")


def one_in_flight(policy: str) -> dict[str, bool]:
    """Return the options with which a policy sees an iteration's outcome before it decides on the next."""
    return {"async_scheduling": False} if policy == "vllm-v1" else {}


def trace(arrivals: list[float], prompts: list[int], outputs: list[int], aborts: list[float]) -> ps.Trace:
    return ps.Trace(np.array(arrivals), np.array(prompts), np.array(outputs), abort_s=np.array(aborts))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_running_request_leaves_between_two_iterations_and_frees_its_memory(policy: str) -> None:
    result = ps.simulate(
        trace([0.0, 0.0], [4, 4], [6, 6], [2.5, np.inf]),
        policy,
        num_blocks=17,
        block_size=2,
        max_model_len=64,
        **SECOND,
        **one_in_flight(policy),
    )
    steps = result.steps
    assert steps is not None
    # It is noticed when the iteration that runs at 2.5 s is over.
    assert steps["num_running"].tolist()[:4] == [2, 2, 2, 1]
    assert steps["used"].iloc[3] < steps["used"].iloc[2]
    requests = result.requests
    assert requests["status"].tolist() == ["aborted", "finished"]
    assert requests["finish_s"].iloc[0] == 3.0
    assert result.summary["requests"]["aborted"] == 1
    assert result.summary["aborted_tokens"] == 3


@pytest.mark.parametrize("policy", POLICIES)
def test_a_waiting_request_leaves_the_queue_and_those_behind_it_move_up(policy: str) -> None:
    result = ps.simulate(
        trace([0.0, 0.1, 0.2], [4, 4, 4], [5, 5, 5], [np.inf, 1.5, np.inf]),
        policy,
        num_blocks=50,
        max_num_seqs=1,
        **SECOND,
        **one_in_flight(policy),
    )
    requests = result.requests
    assert requests["status"].tolist() == ["finished", "aborted", "finished"]
    assert requests["first_scheduled_s"].iloc[2] == requests["finish_s"].iloc[0] == 5.0
    assert result.summary["aborted_tokens"] == 0
    assert result.steps is not None
    assert result.steps["num_waiting"].tolist()[:4] == [0, 2, 1, 1]


@pytest.mark.parametrize("batches", [{"async_scheduling": False}, {"async_scheduling": True}])
def test_under_v1_a_client_that_goes_away_during_the_last_iteration_does_not_get_its_token(
    batches: dict[str, bool],
) -> None:
    requests = trace([0.0, 0.0], [4, 4], [3, 3], [2.5, 3.0])
    result = ps.simulate(requests, "vllm-v1", num_blocks=50, **SECOND, **batches)
    assert result.requests["status"].tolist() == ["aborted", "aborted"]
    assert result.requests["finish_s"].tolist() == [3.0, 3.0]
    later = ps.simulate(
        requests.with_columns({"abort_s": np.array([3.5, 3.5])}),
        "vllm-v1",
        num_blocks=50,
        **SECOND,
        **batches,
    )
    assert later.requests["status"].tolist() == ["finished", "finished"]


def test_under_v0_a_client_that_goes_away_during_the_last_iteration_was_answered() -> None:
    result = ps.simulate(trace([0.0], [4], [3], [2.5]), "vllm-v0", num_blocks=50, **SECOND)
    assert result.requests["status"].tolist() == ["finished"]


def test_a_swapped_group_gives_its_swap_space_back() -> None:
    samples = ps.Trace(
        np.array([0.0, 0.0, 7.0]),
        np.array([2, 2, 2]),
        np.array([6, 6, 1]),
        np.array([2, 2, 1]),
        abort_s=np.array([np.inf, 5.5, np.inf]),
    )
    result = ps.simulate(samples, "vllm-sosp", num_blocks=8, block_size=2, cpu_blocks=8, **SECOND)
    steps = result.steps
    assert steps is not None
    assert result.requests["swaps"].tolist() == [0, 1, 0]
    assert result.requests["status"].tolist() == ["finished", "aborted", "finished"]
    assert steps["num_swapped"].max() == 1
    assert steps["free_cpu_blocks"].iloc[-1] == 8
    assert result.summary["swapped_blocks"]["in"] == 0


def test_a_preempted_request_may_go_away_while_it_waits_again() -> None:
    result = ps.simulate(
        trace([0.0, 0.0], [4, 4], [3, 2], [np.inf, 2.5]), "vllm-sosp", num_blocks=4, block_size=2, **SECOND
    )
    assert result.requests["status"].tolist() == ["finished", "aborted"]
    assert result.requests["recomputes"].iloc[1] == 1
    assert result.summary["aborted_tokens"] == 1


def test_a_request_that_is_over_in_time_notices_nothing() -> None:
    never = ps.simulate(trace([0.0], [4], [6], [np.inf]), "vllm-sosp", num_blocks=50, **SECOND)
    late = ps.simulate(trace([0.0], [4], [6], [6.0]), "vllm-sosp", num_blocks=50, **SECOND)
    assert never.requests.equals(late.requests)


def test_a_client_timeout_counts_from_the_arrival() -> None:
    arrivals = ps.Trace(np.array([0.0, 3.0]), np.array([4, 4]), np.array([9, 3]))
    result = ps.simulate(arrivals, "vllm-sosp", num_blocks=50, client_timeout=4.0, **SECOND)
    assert result.requests["status"].tolist() == ["aborted", "finished"]
    assert result.requests["finish_s"].tolist() == [4.0, 6.0]


def test_a_static_batch_cannot_be_left() -> None:
    with pytest.raises(PagesimError, match="static batch"):
        ps.simulate(trace([0.0], [4], [6], [2.0]), "static", num_blocks=50, cost="affine:1,0,0")

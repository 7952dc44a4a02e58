"""Where the real engines hang, leak or die: ours goes on and counts it, or stops there if it is asked to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pagesim as ps
from tests.traces import trace_of

COST = "affine:0.010,1e-5,1e-7"


def trace(*requests: tuple[float, int, int], samples: tuple[tuple[int, ...], ...] | None = None) -> ps.Trace:
    """Return requests of (arrival, prompt, output), and the outputs of their samples where these differ."""
    made = trace_of(*requests)
    if samples is None:
        return made
    tokens = np.array([max(each) for each in samples])
    return made.with_columns(
        {"n": np.array(list(map(len, samples))), "sample_tokens": list(samples), "output_tokens": tokens}
    )


SMALL: dict[str, Any] = {"num_blocks": 24, "cpu_blocks": 100, "cost": COST}
CASES: dict[str, tuple[ps.Trace, str, dict[str, Any], str, str]] = {
    "a prompt larger than the cache blocks vLLM 0.2.0's queue": (
        trace((0, 500, 5), (0, 20, 5)),
        "vllm-v0",
        {"vllm_version": "0.2.0"},
        "never_admitted",
        "blocks all requests behind it for ever",
    ),
    "a sequence that fills the cache and was swapped out never comes back": (
        trace((0, 30, 500)),
        "vllm-v0",
        {"preemption": "swap"},
        "never_swapped_in",
        "tries again for ever",
    ),
    "a full swap space ends the run": (
        trace((0, 100, 200), (0, 100, 200), samples=((200, 200), (200, 200))),
        "vllm-v0",
        {"cpu_blocks": 2},
        "swap_space_full",
        "dies with an error",
    ),
    "a request whose other samples are over and that is recomputed leaks": (
        trace((0, 100, 90), (0.001, 100, 200), samples=((90,), (5, 200))),
        "vllm-v0",
        {},
        "leak",
        "never frees them",
    ),
    "the paper's system never admits a prompt that leaves no watermark": (
        trace((0, 24 * 16, 5), (0, 20, 5)),
        "vllm-sosp",
        {"watermark": 0.1},
        "never_admitted",
        "blocks all requests behind it for ever",
    ),
    "Orca never admits what its buddies cannot hold": (
        trace((0, 200, 50), (0, 20, 5)),
        "orca-max",
        {"num_blocks": 12, "max_model_len": 256},
        "never_admitted",
        "blocks all requests behind it for ever",
    ),
    "TensorRT-LLM dies of a prompt that is not cut and was paused": (
        trace((0, 150, 60), (0, 150, 60)),
        "trtllm",
        {
            "num_blocks": 12,
            "max_batch_size": 2,
            "max_num_tokens": 160,
            "capacity_scheduler_policy": "MAX_UTILIZATION",
        },
        "never_resumed",
        "dies of a failed check",
    ),
    "vLLM v1 never admits a prompt larger than its cache": (
        trace((0, 500, 5), (0, 20, 5)),
        "vllm-v1",
        {},
        "never_admitted",
        "blocks all requests behind it for ever",
    ),
}


@pytest.mark.parametrize(("requests", "policy", "options", "key", "really"), CASES.values(), ids=CASES)
def test_strict_compat_stops_with_what_the_real_engine_does(
    requests: ps.Trace, policy: str, options: dict[str, Any], key: str, really: str
) -> None:
    with pytest.raises(ps.PagesimError, match=f"strict_compat: .*request .*{really}"):
        ps.simulate(requests, policy, strict_compat=True, **(SMALL | options))


@pytest.mark.parametrize(("requests", "policy", "options", "key", "really"), CASES.values(), ids=CASES)
def test_without_it_everybody_else_is_served(
    requests: ps.Trace, policy: str, options: dict[str, Any], key: str, really: str
) -> None:
    summary = ps.simulate(requests, policy, **(SMALL | options)).summary
    assert summary["requests"]["unfinished"] == 0
    lost = summary["requests"]["rejected"] + summary["requests"]["unschedulable"]
    if key == "leak":
        assert summary["failure_modes"]["leak"] > 0
        assert lost == 0, "ours frees the blocks and goes on"
    else:
        assert lost > 0


def test_a_front_end_that_turns_away_is_no_dead_end() -> None:
    result = ps.simulate(
        trace((0, 300, 5), (0, 20, 5)), "vllm-v1", strict_compat=True, max_model_len=256, **SMALL
    )
    assert result.summary["requests"]["rejected"] == 1
    assert result.summary["requests"]["finished"] == 1


def test_a_static_batch_dies_of_a_request_that_is_too_long_for_it() -> None:
    requests = trace((0, 2000, 45))
    with pytest.raises(ps.PagesimError, match="empty batch"):
        ps.simulate(requests, "static", strict_compat=True)
    assert ps.simulate(requests, "static").summary["requests"]["rejected"] == 1


def test_a_run_that_meets_no_dead_end_is_the_same_with_strict_compat() -> None:
    requests = trace((0, 30, 50), (0.1, 40, 60), (0.1, 10, 90))
    strict = ps.simulate(requests, "vllm-v0", strict_compat=True, **SMALL)
    assert strict.requests.equals(ps.simulate(requests, "vllm-v0", **SMALL).requests)

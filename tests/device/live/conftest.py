"""What the tests of live runs need: one thread, small traces, and systems that get into trouble."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pagesim as ps
from pagesim.setup.system import System


def few_requests(count: int = 8, **columns: Any) -> ps.Trace:
    """Return a few requests of mixed lengths; all arrive at once, so that no decision depends on a clock."""
    random = np.random.default_rng(7)
    return ps.Trace(
        arrival_s=columns.pop("arrival_s", np.zeros(count)),
        prompt_tokens=columns.pop("prompt_tokens", random.integers(3, 40, count)),
        output_tokens=columns.pop("output_tokens", random.integers(2, 14, count)),
        **columns,
    )


def samples(count: int, number: int) -> dict[str, Any]:
    return {"count": count, "n": np.full(count, number)}


def conversations() -> dict[str, Any]:
    """Three turns of three sessions, each beginning with all of the turn before."""
    prompt = np.repeat([12, 29, 46], 3)
    return {
        "count": 9,
        "prompt_tokens": prompt,
        "output_tokens": np.full(9, 9),
        "session_id": np.array(list("abc") * 3, dtype=object),
    }


V1 = {
    "policy": "vllm-v1",
    "num_blocks": 28,
    "max_num_batched_tokens": 24,
    "max_model_len": 100,
    "enable_prefix_caching": False,
}
BEAMS = {"count": 4, "beam_width": np.full(4, 3)}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any], set[str]]] = {
    "sosp, recompute": ({"num_blocks": 30}, {}, {"prompt", "decoded", "recomputed"}),
    "sosp, swap": ({"num_blocks": 30, "preemption": "swap"}, {}, {"swapped"}),
    "sosp, two samples": ({"num_blocks": 34}, samples(6, 2), {"forked", "copied", "swapped"}),
    "sosp, beams": ({"num_blocks": 36, "beam_drop": 0.3}, BEAMS, {"forked", "copied", "swapped"}),
    "token by token": ({"policy": "token-granular", "num_blocks": 120, "block_size": 1}, {}, {"recomputed"}),
    "v0": ({"policy": "vllm-v0", "num_blocks": 30, "preemption": "swap"}, {}, {"swapped"}),
    "v0, two samples": (
        {"policy": "vllm-v0", "num_blocks": 34},
        {
            **samples(6, 2),
            "output_tokens": np.array([9, 12, 4, 14, 8, 10]),
            "sample_tokens": ((9, 3), (4, 12), (4, 4), (14, 2), (5, 8), (10, 6)),
        },
        {"forked", "copied", "swapped"},
    ),
    "v1, chunks": (V1, {}, {"chunk", "recomputed"}),
    "v1, no chunks": (
        {**V1, "enable_chunked_prefill": False, "max_num_batched_tokens": 100},
        {},
        {"prompt", "recomputed"},
    ),
    "v1, prefixes": (
        {**V1, "num_blocks": 70, "enable_prefix_caching": True},
        {"prefix_tokens": np.array([0, 9, 9, 0, 9, 9, 9, 9]), "prompt_tokens": np.arange(20, 36, 2)},
        {"prefix_found"},
    ),
    "v1, conversations": (
        {**V1, "num_blocks": 60, "enable_prefix_caching": True},
        conversations(),
        {"prefix_found"},
    ),
    "orca, samples of one's own": ({"policy": "orca-oracle", "num_blocks": 64}, samples(6, 2), {"prompt"}),
    "contiguous, beams": (
        {"policy": "contiguous-max", "num_blocks": 100, "max_model_len": 64, "beam_drop": 0.3},
        BEAMS,
        {"copied"},
    ),
    "static": ({"policy": "static", "num_blocks": 64, "max_model_len": 100}, {}, {"prompt", "decoded"}),
}
"""By name: options, columns of the trace, and what must have happened to sequences that were looked at."""


def small_system(**options: Any) -> System:
    """Return a system of the tiny model in blocks of 4 tokens."""
    return System(**{"policy": "vllm-sosp", "model": "tiny", "block_size": 4, "seed": 3, **options})


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test that asks for ``any_case`` each of them."""
    if "any_case" in metafunc.fixturenames:
        metafunc.parametrize("any_case", CASES)


@pytest.fixture(scope="session")
def cases() -> dict[str, tuple[dict[str, Any], dict[str, Any], set[str]]]:
    """Return the cases by name."""
    return CASES


@pytest.fixture(scope="session")
def make_trace() -> Callable[..., ps.Trace]:
    """Return a function that makes a few requests."""
    return few_requests


@pytest.fixture(scope="session")
def system_of() -> Callable[..., System]:
    """Return a function that makes a small system."""
    return small_system


@pytest.fixture
def live() -> Callable[..., Any]:
    """Return a function that runs a trace live on the CPU, checked unless it is told otherwise."""
    from pagesim.device.live import run_live

    def run(trace: ps.Trace, options: dict[str, Any], **how: Any) -> Any:
        return run_live(small_system(**options), trace, **{"device": "cpu", "check": True, **how})

    return run

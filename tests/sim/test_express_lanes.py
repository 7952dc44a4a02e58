"""The express lanes decide as their schedulers do: the same records, to the bit, and far fewer calls."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import pagesim as ps
from pagesim.sim import engine
from pagesim.sim.express import Lane, lane_for

LANES = ("vllm-sosp", "vllm-v0", "vllm-v1")
COST = "affine:0.024,1e-4,8.2e-7"


@st.composite
def plain_runs(draw: st.DrawFn) -> tuple[ps.Trace, str, dict[str, Any]]:
    """Requests of one sequence with ties and bursts, in memory that is often too small for them."""
    policy = draw(st.sampled_from([*LANES, "token-granular"]))
    size = draw(st.integers(1, 40))
    gap = draw(st.sampled_from([0.0, 0.01, 0.1, 1.0, 5.0]))
    longest = draw(st.sampled_from([3, 20, 120]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    arrivals = np.round(np.cumsum(rng.exponential(gap, size) if gap else np.zeros(size)), 2)
    trace = ps.Trace(arrivals, rng.integers(1, longest, size), rng.integers(1, longest, size))
    block_size = 1 if policy == "token-granular" else draw(st.sampled_from([1, 2, 4, 16]))
    options: dict[str, Any] = {
        "block_size": block_size,
        "num_blocks": max(2, draw(st.integers(longest // 2, 8 * longest)) // block_size),
        "cost": draw(st.sampled_from([COST, "affine:0.02,0,0", "roofline", "profile:analytic-a100-40gb"])),
        "watermark": draw(st.sampled_from([None, 0.0, 0.1])),
        "max_num_seqs": draw(st.sampled_from([None, 1, 3])),
        "max_num_batched_tokens": draw(st.sampled_from([None, longest, 2 * longest])),
        "max_model_len": draw(st.sampled_from([None, 2 * longest])),
        "until": draw(st.sampled_from([None, 1.0])),
    }
    if policy in ("vllm-v0", "vllm-v1"):
        releases = {"vllm-v0": ["0.1.7", "0.2.0", "0.2.7"], "vllm-v1": ["0.11.2", "0.19.0", "0.33.0"]}
        options["compat"] = draw(st.sampled_from(releases[policy]))
    if policy == "vllm-v1":
        options["long_prefill_token_threshold"] = draw(st.sampled_from([None, 7]))
    return trace, policy, {name: value for name, value in options.items() if value is not None}


@st.composite
def caching_runs(draw: st.DrawFn) -> tuple[ps.Trace, str, dict[str, Any]]:
    """Requests whose prompts begin alike, or go on from an earlier answer, and often run in chunks."""
    size = draw(st.integers(2, 30))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    gap = draw(st.sampled_from([0.01, 0.1, 1.0]))
    prompts, outputs = rng.integers(1, 90, size), rng.integers(1, draw(st.sampled_from([3, 30])), size)
    columns: dict[str, Any] = {}
    kind = draw(st.sampled_from(["prefix", "ids", "rounds"]))
    if kind == "prefix":
        columns["prefix_tokens"] = np.minimum(prompts, draw(st.integers(1, 60)))
    elif kind == "ids":
        columns["hash_block_size"] = draw(st.sampled_from([4, 10]))
        ids = rng.choice(2, (size, 90), p=(0.9, 0.1))
        if draw(st.booleans()):  # each id stands for its prefix
            ids = np.array(
                [[int("1" + "".join(map(str, row[: n + 1])), 2) % 2**40 for n in range(90)] for row in ids]
            )
        lengths = -(-prompts // columns["hash_block_size"])
        columns["hash_ids"] = [tuple(row[:n].tolist()) for row, n in zip(ids, lengths, strict=True)]
    else:
        columns["session_id"] = np.array([str(each) for each in rng.integers(0, 4, size)], dtype=object)
        prompts = np.sort(prompts)
    arrivals = np.round(np.cumsum(rng.exponential(gap, size)), 2)
    block_size = draw(st.sampled_from([1, 4, 16]))
    options = {
        "prefix_caching": True,
        "block_size": block_size,
        "num_blocks": max(2, draw(st.integers(120, 800)) // block_size),
        "cost": COST,
        "watermark": draw(st.sampled_from([None, 0.1])),
        "max_num_seqs": draw(st.sampled_from([None, 3])),
        "max_num_batched_tokens": draw(st.sampled_from([None, 8, 40, 100])),
        "long_prefill_token_threshold": draw(st.sampled_from([None, 7])),
        "compat": draw(st.sampled_from(["0.11.2", "0.19.0", "0.33.0"])),
        "until": draw(st.sampled_from([None, 1.0])),
    }
    trace = ps.Trace(arrivals, prompts, outputs, **columns)
    return trace, "vllm-v1", {name: value for name, value in options.items() if value is not None}


@pytest.fixture
def lanes(monkeypatch: pytest.MonkeyPatch) -> list[Lane | None]:
    """The lanes of all engines that are made from now on; whoever empties it and appends None has none."""
    made: list[Lane | None] = []

    def make(*arguments: Any) -> Lane | None:
        made.append(None if made == [None] else lane_for(*arguments))
        return made[-1]

    monkeypatch.setattr(engine, "lane_for", make)
    return made


# Everybody loses his memory, and whoever waits behind a dead end runs at once.
LAST_ONE_OUT = (
    ps.Trace(np.zeros(6), np.array([9, 10, 15, 19, 1, 3]), np.array([16, 19, 5, 6, 17, 9])),
    "vllm-sosp",
    {"block_size": 16, "num_blocks": 2, "cost": COST, "max_num_batched_tokens": 20},
)


@example(LAST_ONE_OUT)
@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(plain_runs(), caching_runs()))
def test_a_lane_leaves_the_records_of_its_scheduler(
    lanes: list[Lane | None], run: tuple[ps.Trace, str, dict[str, Any]]
) -> None:
    trace, policy, options = run
    results = []
    for without in (False, True):
        lanes[:] = [None] if without else []
        try:
            results.append(ps.simulate(trace, policy, **options))
        except ps.PagesimError as error:
            results.append(str(error))
            continue
        assert (lanes[-1] is None) == without
    express, stepped = results
    if isinstance(express, str) or isinstance(stepped, str):
        assert express == stepped
        return
    assert express.requests.equals(stepped.requests)
    assert express.steps.equals(stepped.steps)
    decisions = [each.summary.pop("sim")["decisions"] for each in results]
    assert decisions[0] == decisions[1]
    assert express.summary == stepped.summary


@pytest.mark.parametrize("policy", LANES)
def test_a_lane_keeps_the_whole_of_an_ordinary_run(policy: str, lanes: list[Lane | None]) -> None:
    trace = ps.make_trace("sharegpt", arrivals="poisson", rate=1.9, num_requests=300, seed=1)
    result = ps.simulate(trace, policy, num_blocks=983, cost=COST)
    (lane,) = lanes
    assert lane is not None
    assert lane.active
    assert result.summary["requests"]["finished"] == 300


def test_whoever_is_not_plain_gets_no_lane(lanes: list[Lane | None]) -> None:
    trace = ps.make_trace("sharegpt", arrivals="poisson", rate=1.9, num_requests=5, seed=1)
    for options in ({"n": 2}, {"preemption": "swap"}, {"policy": "orca-max"}, {"leap": False}):
        samples = options.pop("n", 1)
        ps.simulate(trace.with_columns({"n": np.full(5, samples)}), **options)
    assert set(lanes) <= {None}


@pytest.mark.parametrize(
    ("policy", "rate", "most"),
    [
        ("vllm-sosp", 1.95, 27),
        ("vllm-sosp", 4.0, 45),
        ("vllm-v0", 1.95, 56),
        ("vllm-v1", 1.95, 42),
        ("vllm-v1", 4.0, 80),
    ],
)
def test_a_request_takes_so_many_calls(policy: str, rate: float, most: int) -> None:
    trace = ps.make_trace("sharegpt", arrivals="poisson", rate=rate, num_requests=3000, seed=1)
    assert calls_of(trace, policy, num_blocks=983, cost=COST) < most


def test_with_a_prefix_cache_calls_do_not_grow_with_the_blocks() -> None:
    rng = np.random.default_rng(1)
    turns, ids = 12, 24  # conversations of so many requests, each of which adds so many blocks of its prompt
    talks = [rng.integers(0, 2**31, turns * ids).tolist() for _ in range(40)]
    prompts = [talk[: (turn + 1) * ids] for turn in range(turns) for talk in talks]
    trace = ps.Trace(
        np.cumsum(rng.exponential(0.2, len(prompts))),
        np.array([64 * len(each) for each in prompts]),
        rng.integers(1, 90, len(prompts)),
        hash_ids=prompts,
        hash_block_size=64,
    )
    memory = 30 * turns * ids * 64
    options = {"model": "llama-3.1-8b", "cost": COST, "max_num_batched_tokens": 8192, "prefix_caching": True}
    few, many = (
        calls_of(trace, "vllm-v1", block_size=size, num_blocks=memory // size, **options) for size in (64, 1)
    )
    assert many < 1.2 * few < 240


def calls_of(trace: ps.Trace, policy: str, **options: Any) -> float:
    """Return the calls of Python functions that a request takes."""
    ps.simulate(trace.take(np.arange(50)), policy, steps="none", **options)  # what is done at first use
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        ps.simulate(trace, policy, steps="none", **options)
    finally:
        sys.setprofile(before)
    return calls / len(trace)

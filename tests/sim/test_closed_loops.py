"""Closed loops: a request is sent when another one is over, and all else is as if it had arrived then."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pandas as pd
import pytest

import pagesim as ps
from tests.traces import random_load as load

SECOND: dict[str, Any] = {"cost": "affine:1,0,0", "steps": "iterations", "watermark": 0.0, "num_blocks": 200}
POLICIES = ("orca-oracle", "vllm-sosp", "vllm-v0", "vllm-v1", "contiguous-max")

MIXED = ("orca-oracle", "vllm-sosp", "vllm-v1", "contiguous-max")
"""Under these a prompt runs beside those that decode: none of them waits for it."""

RUN_SCHEDULER = {
    # What vLLM 0.33.0's own scheduler did, driven in a closed loop: preemptions by watermark.
    0.0: 1012,
    0.02: 377,
    0.05: 236,
    0.1: 183,
}


def trace(arrivals: list[float], prompts: list[int], outputs: list[int], **columns: Any) -> ps.Trace:
    return ps.Trace(np.array(arrivals), np.array(prompts), np.array(outputs), **columns)


def in_seconds(given: ps.Trace, policy: str, **options: Any) -> ps.Result:
    """Replay with iterations of a second, each decided when the one before is over."""
    own = {"async_scheduling": False} if policy == "vllm-v1" else {}
    return ps.simulate(given, policy, **SECOND, **own, **options)


def conversations(seed: int, sessions: int = 12, turns: int = 4) -> ps.Trace:
    """Turns that extend one another; a client thinks for up to 3 s, or not at all."""
    rng = np.random.default_rng(seed)
    question, answer = rng.integers(1, 40, (2, sessions, turns))
    before = np.cumsum(question + answer, axis=1) - question - answer
    thought = rng.choice([0.0, 0.5, 3.0], (sessions, turns)) * rng.random((sessions, turns))
    return ps.Trace(
        np.repeat(rng.random(sessions), turns),
        (before + question).ravel(),
        answer.ravel(),
        session_id=np.repeat(np.arange(sessions), turns),
        think_s=thought.ravel(),
    )


@pytest.mark.parametrize("fast_forward", [True, False])
@pytest.mark.parametrize(("watermark", "preemptions"), RUN_SCHEDULER.items())
def test_preemptions_of_a_closed_loop_are_those_of_vllm_s_own_scheduler(
    watermark: float, preemptions: int, fast_forward: bool
) -> None:
    lengths = Random(0)
    drawn = [(lengths.randint(800, 1200), lengths.randint(4000, 6000)) for _ in range(450)]
    prompts, outputs = zip(*drawn, strict=True)
    result = ps.simulate(
        trace([0.0] * 450, prompts, outputs),
        "vllm-v1",
        vllm_version="0.33.0",
        max_concurrency=128,
        num_blocks=18724,  # the null block is one of them
        max_num_batched_tokens=8192,
        max_num_seqs=256,
        max_model_len=16384,
        watermark=watermark,
        enable_prefix_caching=False,
        async_scheduling=False,
        fast_forward=fast_forward,
        steps="iterations",
    )
    assert result.summary["preemptions"]["recompute"] == preemptions
    assert result.summary["requests"]["finished"] == 450
    if watermark == 0.1:
        assert result.steps is not None
        assert (result.steps["num_tokens"] > 0).sum() == 30854, "iterations that are not empty"


@pytest.mark.parametrize("policy", MIXED)
def test_the_next_request_is_sent_at_the_instant_at_which_one_is_over_and_is_decided_on_then(
    policy: str,
) -> None:
    result = in_seconds(
        trace([0.0] * 4, [4] * 4, [2, 4, 3, 1]), policy, max_concurrency=2, max_model_len=64, frontend="0"
    )
    requests = result.requests
    assert requests["arrival_s"].tolist() == [0.0, 0.0, 2.0, 4.0]
    assert requests["due_s"].tolist() == [0.0] * 4
    assert requests["first_scheduled_s"].tolist() == requests["arrival_s"].tolist()
    assert requests["finish_s"].tolist() == [2.0, 4.0, 5.0, 5.0]
    assert result.summary["latency"]["mean"] == np.mean([2.0, 4.0, 3.0, 1.0])


def test_where_all_is_due_at_once_no_decision_depends_on_how_long_iterations_take() -> None:
    given = load().with_columns({"arrival_s": np.zeros(80)})
    counted = ["num_running", "num_waiting", "num_tokens", "free_gpu_blocks", "num_preempted"]
    tables = []
    for cost in ("affine:0.02,1e-4,1e-6", "affine:0.001,0,2e-5"):
        options = {"num_blocks": 60, "cost": cost, "max_concurrency": 9, "async_scheduling": False}
        result = ps.simulate(given, "vllm-v1", steps="iterations", **options)
        assert result.summary["preemptions"]["recompute"] > 20
        assert result.steps is not None
        tables.append(result.steps[counted])
    pd.testing.assert_frame_equal(*tables, check_exact=True)


def test_a_request_is_over_when_its_last_token_is_processed_where_two_batches_are_in_flight() -> None:
    given = trace([0.0] * 3, [4] * 3, [2, 4, 3])
    options = {**SECOND, "async_scheduling": True, "max_concurrency": 2}
    requests = ps.simulate(given, "vllm-v1", **options).requests
    assert requests["arrival_s"].tolist() == [0.0, 0.0, requests["finish_s"].iloc[0]]
    # The batch after the next was scheduled when the next one began: without the third request.
    assert requests["first_scheduled_s"].iloc[2] == 2.0
    assert requests["first_token_s"].iloc[2] == 4.0


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("places", [1, 3, 10])
def test_a_request_is_sent_when_it_is_due_and_when_there_is_a_place_whichever_is_later(
    policy: str, places: int
) -> None:
    options = {"num_blocks": 60, "cost": "affine:0.02,1e-4,1e-6", "max_model_len": 512}
    requests = ps.simulate(load(), policy, max_concurrency=places, **options).requests
    due, sent, over = (requests[name].to_numpy() for name in ("due_s", "arrival_s", "finish_s"))
    assert due.tolist() == pytest.approx(load().arrival_s.tolist())
    assert (np.diff(sent) >= 0).all(), "in the order of the trace"
    served = requests["status"].to_numpy() != "rejected"
    late = 0
    for row in np.flatnonzero(served):
        before = served[:row]
        outstanding = int((before & (over[:row] > sent[row])).sum())
        assert outstanding < places
        if sent[row] > due[row]:
            late += 1
            assert sent[row] in over[:row][before], "a place became free"
            assert int((before & (over[:row] >= sent[row])).sum()) >= places, "there was none before"
    assert late > 20


@pytest.mark.parametrize("policy", [*POLICIES, "static"])
def test_a_bound_that_is_never_reached_changes_nothing(policy: str) -> None:
    options: dict[str, Any] = {"num_blocks": 60, "cost": "affine:0.02,1e-4,1e-6", "max_model_len": 512}
    steps: dict[str, Any] = {"steps": "iterations"}
    given = load(abort_s=load().arrival_s + 8.0) if policy != "static" else load()
    opened = ps.simulate(given, policy, **options, **steps)
    closed = ps.simulate(given, policy, max_concurrency=80, **options, **steps)
    times = ["arrival_s", "finish_s"]  # patience is rounded to ticks by itself
    pd.testing.assert_frame_equal(closed.requests[times], opened.requests[times], rtol=0, atol=2e-12)
    assert closed.requests["status"].tolist() == opened.requests["status"].tolist()
    assert closed.steps is not None
    assert opened.steps is not None
    pd.testing.assert_frame_equal(closed.steps, opened.steps, check_exact=True)


def test_a_rejected_request_is_over_when_it_is_sent_and_takes_no_place() -> None:
    result = in_seconds(
        trace([0.0] * 4, [4, 500, 500, 4], [3, 1, 1, 2]),
        "vllm-v1",
        max_concurrency=1,
        max_model_len=64,
    )
    requests = result.requests
    assert requests["status"].tolist() == ["finished", "rejected", "rejected", "finished"]
    assert requests["arrival_s"].tolist() == [0.0, 3.0, 3.0, 3.0]


def test_a_request_that_is_ignored_or_stuck_is_over_and_the_next_one_is_sent() -> None:
    # Of the paper's time: a prompt that can never be admitted is ignored in its turn.
    ignored = ps.simulate(
        trace([0.0] * 3, [4, 40, 4], [2, 1, 2]),
        "vllm-v0",
        max_concurrency=1,
        **{**SECOND, "num_blocks": 4, "block_size": 4},
    ).requests
    assert ignored["status"].tolist() == ["finished", "ignored", "finished"]
    assert ignored["arrival_s"].tolist() == [0.0, 2.0, 2.0]
    assert ignored["finish_s"].tolist() == [2.0, 2.0, 4.0]
    unschedulable = ps.simulate(
        trace([0.0] * 3, [4, 15, 4], [2, 1, 2]),
        "vllm-v0",
        max_concurrency=1,
        **{**SECOND, "num_blocks": 4, "block_size": 4, "watermark": 0.25},
    ).requests
    assert unschedulable["status"].tolist()[1] in ("unschedulable", "ignored")
    assert unschedulable["arrival_s"].tolist() == [0.0, 2.0, 2.0]


@pytest.mark.parametrize("policy", ["vllm-sosp", "vllm-v1"])
def test_a_client_s_patience_counts_from_sending(policy: str) -> None:
    options = {"max_concurrency": 1, "client_timeout": 2.5}
    requests = in_seconds(trace([0.0] * 3, [4] * 3, [6, 2, 6]), policy, **options).requests
    assert requests["status"].tolist() == ["aborted", "finished", "aborted"]
    assert requests["arrival_s"].tolist() == [0.0, 3.0, 5.0]
    assert requests["finish_s"].tolist() == [3.0, 5.0, 8.0]


def test_what_the_end_of_a_run_leaves_unsent_never_arrived() -> None:
    result = in_seconds(trace([0.0] * 4, [4] * 4, [3] * 4), "vllm-v1", max_concurrency=1, until=4.5)
    requests = result.requests
    assert requests["status"].tolist() == ["finished", "unfinished", "unfinished", "unfinished"]
    assert requests["arrival_s"].tolist()[:2] == [0.0, 3.0]
    assert requests["arrival_s"].isna().tolist() == [False, False, True, True]
    assert result.summary["requests"]["unfinished"] == 3


def test_samples_of_a_request_take_one_place_until_all_are_over() -> None:
    for policy in ("vllm-v1", "vllm-sosp"):  # of which the first serves each as a request of its own
        outputs = [3, 1]
        given = trace([0.0, 0.0], [4, 4], outputs, n=[2, 1], sample_tokens=[(3, 2), (1,)])
        requests = in_seconds(given, policy, max_concurrency=1).requests
        assert requests["arrival_s"].iloc[0] == 0.0
        assert requests["arrival_s"].iloc[-1] == 3.0


@pytest.mark.parametrize("policy", MIXED)
def test_a_turn_is_sent_when_the_last_one_is_over_and_the_client_has_thought(policy: str) -> None:
    given = trace(
        [0.0, 0.0, 0.0, 1.0],
        [4, 7, 20, 4],
        [2, 3, 1, 3],
        session_id=np.array(["a", "a", "a", "b"], object),
        think_s=np.array([9.0, 0.0, 2.5, 9.0]),
    )
    requests = in_seconds(given, policy, max_model_len=64).requests
    assert requests["arrival_s"].tolist() == [0.0, 2.0, 7.5, 1.0]
    assert requests["finish_s"].tolist() == [2.0, 5.0, 8.5, 4.0]
    assert requests["due_s"].equals(requests["arrival_s"])


def test_a_turn_that_fails_is_over_and_the_conversation_goes_on() -> None:
    given = trace(
        [0.0] * 3,
        [4, 500, 9],
        [6, 1, 2],
        session_id=np.zeros(3),
        think_s=np.array([0.0, 1.0, 2.0]),
        abort_s=np.array([2.5, np.inf, np.inf]),
    )
    requests = in_seconds(given, "vllm-v1", max_model_len=64).requests
    assert requests["status"].tolist() == ["aborted", "rejected", "finished"]
    assert requests["arrival_s"].tolist() == [0.0, 4.0, 6.0]


def test_turns_that_are_due_wait_for_a_place_in_the_order_in_which_they_were_due() -> None:
    given = trace(
        [0.0, 0.0, 0.5, 0.9],
        [4] * 4,
        [1, 1, 6, 1],
        session_id=np.array([1, 1, 2, 3]),
        think_s=np.array([0.0, 0.2, 0.0, 0.0]),
    )
    requests = in_seconds(given, "vllm-v1", max_concurrency=1).requests
    # Turn 2 of the first is due at 1.2 s: after the others, which wait since 0.5 s and 0.9 s.
    assert requests["due_s"].tolist() == [0.0, 1.2, 0.5, 0.9]
    assert requests["arrival_s"].tolist() == [0.0, 8.0, 1.0, 7.0]


def test_the_next_turn_finds_the_prompt_and_the_answer_of_the_last_one_in_the_cache() -> None:
    given = conversations(1)
    options = {
        "enable_prefix_caching": True,
        "num_blocks": 4000,
        "block_size": 16,
        "cost": "affine:0.02,1e-4,1e-6",
    }
    requests = ps.simulate(given, "vllm-v1", **options).requests
    turn = np.arange(len(given)) % 4
    # The KV of the last token of an answer is never stored.
    held = np.roll(given.prompt_tokens + given.output_tokens, 1) - 1
    assert (requests["cached_tokens"].to_numpy()[turn > 0] == (held // 16 * 16)[turn > 0]).all()
    assert (requests["cached_tokens"].to_numpy()[turn == 0] == 0).all()

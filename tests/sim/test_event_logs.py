"""Whole logs of tiny runs, worked out by hand: time in steps of one second, so that each is one number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pagesim as ps

SECOND: dict[str, Any] = {"cost": "affine:1,0,0", "steps": "iterations"}


def log(result: ps.Result, *columns: str) -> list[tuple[float, ...]]:
    assert result.steps is not None
    return [tuple(row) for row in result.steps[list(columns)].itertuples(index=False)]


def test_orcas_loop_admits_between_iterations_and_lets_everybody_leave_when_done() -> None:
    trace = ps.Trace(np.array([0.0, 0.5, 9.0]), np.array([4, 2, 3]), np.array([3, 2, 1]))
    result = ps.simulate(trace, "orca-oracle", num_blocks=8, block_size=4, max_model_len=16, **SECOND)
    # clock, running, waiting, batched tokens, context, free blocks
    assert log(
        result,
        "clock", "num_running", "num_waiting", "num_batched_tokens", "sum_context_tokens", "free_gpu_blocks",
    ) == [
        (0.0, 1, 0, 4, 4, 6),  # the first reserves 7 tokens: 2 blocks
        (1.0, 2, 0, 3, 7, 5),  # one decodes, the second's prompt of 2 joins
        (2.0, 2, 0, 2, 9, 5),  # both generate their last token
        (9.0, 1, 0, 3, 3, 7),  # the clock jumps over idle time
    ]  # fmt: skip
    requests = result.requests
    assert requests["first_token_s"].tolist() == [1.0, 2.0, 10.0]
    assert requests["finish_s"].tolist() == [3.0, 3.0, 10.0]
    summary = result.summary
    assert summary["normalized_latency"]["mean"] == pytest.approx((3 / 3 + 2.5 / 2 + 1 / 1) / 3)
    assert summary["ttft"]["mean"] == pytest.approx((1 + 1.5 + 1) / 3)
    assert summary["tpot"]["mean"] == pytest.approx((2 / 2 + 1 / 1) / 2)
    assert summary["queueing"]["mean"] == pytest.approx(0.5 / 3)
    assert summary["itl"]["mean"] == pytest.approx(1.0)
    assert summary["throughput"] == {"requests_per_s": 0.3, "tokens_per_s": 0.6}
    assert summary["batch"]["mean"] == pytest.approx(6 / 4)
    # Over time the six idle seconds count as free: 13 blocks held for a second each, of 8 for ten seconds.
    used = summary["memory"]["strict"]
    assert used["per_iteration"]["used"] == pytest.approx(100 * 23 / (4 * 32))
    assert used["per_second"]["used"] == pytest.approx(100 * 23 / (10 * 32))
    assert used["per_second"]["free"] == pytest.approx(100 * (24 + 20 + 20 + 28 + 6 * 32) / (10 * 32))


def test_samples_share_their_prompt_and_copy_its_last_block_on_write() -> None:
    trace = ps.Trace(np.zeros(1), np.array([6]), np.array([4]), np.array([3]))
    result = ps.simulate(trace, "vllm-sosp", num_blocks=20, block_size=4, watermark=0.0, **SECOND)
    assert log(
        result,
        "num_running",
        "num_running_seqs",
        "sum_context_tokens",
        "free_gpu_blocks",
        "blocks_copied",
        "used",
    ) == [
        (1, 3, 18, 18, 0, 6),  # two blocks for all three
        (1, 3, 21, 16, 2, 4 + 3 * 3),  # two copy the second block, the third keeps it
        (1, 3, 24, 16, 0, 4 + 3 * 4),
        (1, 3, 27, 13, 0, 4 + 3 * 5),
    ]
    # Logical blocks 6, 6, 6, 9 over physical 2, 4, 4, 7.
    assert result.summary["sharing"]["saving"] == pytest.approx(
        1 - 4 / (6 / 2 + 6 / 4 + 6 / 4 + 9 / 7), abs=1e-9
    )


def test_a_static_batch_is_padded_and_finishes_as_one() -> None:
    trace = ps.Trace(np.array([0.0, 0.0, 0.5]), np.array([4, 2, 1]), np.array([1, 3, 1]))
    result = ps.simulate(
        trace, "static", num_blocks=10, block_size=2, max_model_len=20, max_batch=2, **SECOND
    )
    assert log(
        result,
        "clock",
        "num_running",
        "num_batched_tokens",
        "sum_context_tokens",
        "used",
        "unused_reservation",
    ) == [
        (0.0, 2, 8, 8, 4 + 2, 2 + 2),  # both rows reserve 4 + 3; they will have 5 and 5
        (1.0, 2, 2, 10, 5 + 3, 2 + 2),
        (2.0, 2, 2, 12, 5 + 4, 2 + 2),  # the first row's own tokens are done: it generates padding
        (3.0, 1, 1, 1, 1, 0),
    ]
    assert result.requests["finish_s"].tolist() == [3.0, 3.0, 4.0]
    assert result.summary["itl"]["mean"] is None
    assert result.batches is not None
    assert result.batches.to_dict("list") == {
        "clock": [0.0, 3.0],
        "queue_len": [2, 1],
        "batch": [2, 1],
        "max_input": [4, 1],
        "max_output": [3, 1],
        "sum_input": [6, 1],
        "sum_output": [4, 1],
        "batch_s": [3.0, 1.0],
    }


def test_until_stops_the_clock_and_the_window_bounds_the_averages() -> None:
    trace = ps.Trace(np.zeros(1), np.array([1]), np.array([10]))
    result = ps.simulate(trace, "vllm-sosp", num_blocks=10, until=4.0, window="1:3", **SECOND)
    assert result.steps is not None
    assert result.steps["clock"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert result.summary["requests"]["unfinished"] == 1
    # Iterations scheduled at 1, 2 and 3 s hold 2, 3 and 4 tokens of 160.
    used = result.summary["memory"]["strict"]
    assert used["per_iteration"]["used"] == pytest.approx(100 * 3 / 160)
    # From 1 s to 3 s: 2 tokens for a second and 3 for a second.
    assert used["per_second"]["used"] == pytest.approx(100 * 2.5 / 160)

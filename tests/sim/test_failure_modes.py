"""Where the real engines hang, leak or die, ours gives a request up, counts it, and goes on."""

from __future__ import annotations

from typing import Any

import numpy as np

import pagesim as ps

COST: dict[str, Any] = {"cost": "affine:0.01,1e-4,1e-6", "block_size": 16}


def outcomes(prompts: list[int], outputs: list[int], policy: str, **options: Any) -> list[str]:
    n = options.pop("n", 1)
    size = len(prompts)
    trace = ps.Trace(np.arange(size) * 0.001, np.array(prompts), np.array(outputs), np.full(size, n))
    return list(ps.simulate(trace, policy, **COST, **options).requests["status"])


def test_a_prompt_longer_than_an_iterations_tokens_is_turned_away() -> None:
    assert outcomes([500, 10], [5, 5], "vllm-sosp", num_blocks=300, max_num_batched_tokens=400) == [
        "rejected",
        "finished",
    ]


def test_a_prompt_that_memory_less_the_watermark_cannot_hold_is_turned_away() -> None:
    # 100 blocks less a watermark of 10 hold 1440 tokens.
    options = {"num_blocks": 100, "watermark": 0.1}
    assert outcomes([1440, 10], [5, 5], "vllm-sosp", **options) == ["finished", "finished"]
    assert outcomes([1441, 10], [5, 5], "vllm-sosp", **options) == ["rejected", "finished"]


def test_a_sequence_that_outgrows_the_cache_alone_is_given_up() -> None:
    # 10 blocks hold 160 tokens. With 9 blocks full the next token takes the tenth; from then on no block is
    # free, the sequence preempts itself, and the watermark keeps it from coming back.
    assert outcomes([100, 10], [56, 5], "vllm-sosp", num_blocks=10, watermark=0.1) == [
        "unschedulable",
        "finished",
    ]
    assert outcomes([100, 10], [45, 5], "vllm-sosp", num_blocks=10, watermark=0.1) == ["finished", "finished"]


def test_without_a_watermark_it_recomputes_itself_token_by_token_to_the_end() -> None:
    trace = ps.Trace(np.zeros(1), np.array([100]), np.array([56]))
    result = ps.simulate(trace, "vllm-sosp", num_blocks=10, watermark=0.0, **COST)
    assert result.summary["requests"]["finished"] == 1
    # Tokens 146 to 155 of KV stand in the tenth block: each of the ten after the first is a recomputation.
    assert result.summary["preemptions"]["recompute"] == 10


def test_v0_recomputes_itself_too_and_at_last_ignores_what_it_cannot_hold_any_more() -> None:
    # 10 blocks hold 160 tokens. With 146 to 161 tokens the sequence finds no block free and preempts itself,
    # in an iteration of no length; its prompt runs again for one token, until 161 are more than the cache.
    trace = ps.Trace(np.zeros(1), np.array([100]), np.array([80]))
    result = ps.simulate(trace, "vllm-v0", steps="iterations", num_blocks=10, watermark=0.0, **COST)
    assert result.requests["status"].tolist() == ["ignored"]
    assert result.summary["requests"]["rejected"] == 1
    assert result.steps is not None
    empty = result.steps[result.steps["num_batched_tokens"] == 0]
    assert empty["step_s"].eq(0).all()
    assert empty["num_preempted"].tolist() == [1] * 16 + [0]  # the last one ignores it
    assert result.summary["preemptions"]["recompute"] == 16


def test_a_group_too_large_to_come_back_is_given_up() -> None:
    # Two samples of 48 + 40 tokens share 3 blocks and need 3 more each: 9 of 9, and two must stay free.
    status = outcomes([48, 16], [40, 4], "vllm-sosp", num_blocks=9, cpu_blocks=20, n=2)
    assert status == ["unschedulable", "finished"]

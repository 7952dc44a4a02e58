"""vLLM v1's rules that the golden logs do not show: overtaking, the cache in the schedule, conversations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pagesim as ps
from tests.traces import trace_of as trace

OPTIONS: dict[str, Any] = {
    "steps": "iterations",
    "cost": "affine:0.02,0,0",
    "num_blocks": 101,
    "block_size": 4,
    "enable_prefix_caching": False,
    "async_scheduling": False,
}
CACHED: dict[str, Any] = {**OPTIONS, "enable_prefix_caching": True}


def computed(result: ps.Result) -> Any:
    """Return the iterations that computed something: without the one that tells the workers who has ended."""
    assert result.steps is not None
    return result.steps[result.steps["num_tokens"] > 0]


@pytest.mark.parametrize(
    ("release", "first"),
    [
        ("0.33.0", [0.02, 0.04, 0.06]),
        ("0.19.0", [0.02, 0.04, 0.06]),
        ("0.11.2", [0.02, 0.04, 0.02]),
    ],
)
def test_without_chunks_only_the_older_release_lets_a_short_prompt_pass_a_long_one(
    release: str, first: list[float]
) -> None:
    requests = trace((0, 20, 3), (0, 30, 3), (0, 8, 3))
    result = ps.simulate(
        requests,
        "vllm-v1",
        vllm_version=release,
        enable_chunked_prefill=False,
        max_num_batched_tokens=32,
        max_model_len=32,
        **OPTIONS,
    )
    np.testing.assert_allclose(result.requests["first_token_s"], first)


@pytest.mark.parametrize(
    ("release", "first"), [("0.33.0", [0.02, 0.04, 0.06]), ("0.11.2", [0.02, 0.06, 0.04])]
)
def test_of_two_that_were_passed_the_older_release_takes_the_later_one_first(
    release: str, first: list[float]
) -> None:
    # It puts each in front of those that were passed before, and all in front of the queue as they are.
    requests = trace((0, 20, 3), (0, 30, 3), (0, 28, 3))
    result = ps.simulate(
        requests,
        "vllm-v1",
        vllm_version=release,
        enable_chunked_prefill=False,
        max_num_batched_tokens=32,
        max_model_len=32,
        **OPTIONS,
    )
    np.testing.assert_allclose(result.requests["first_token_s"], first)


def test_a_long_prefill_threshold_shares_a_budget_among_prompts() -> None:
    # Upstream's own example: three prompts of 800, 400 tokens each at most, 1024 in all.
    requests = trace((0, 800, 9), (0, 800, 9), (0, 800, 9))
    rows = ps.simulate(
        requests,
        "vllm-v1",
        max_num_batched_tokens=1024,
        long_prefill_token_threshold=400,
        **(OPTIONS | {"block_size": 16, "num_blocks": 400}),
    ).steps
    assert rows is not None
    assert rows["num_tokens"].tolist()[:3] == [1024, 1024, 1 + 1 + 352]


def test_a_prompt_that_another_has_begun_is_found_in_the_same_step() -> None:
    requests = trace((0, 21, 2), (0, 21, 2), prefix_tokens=np.array([16, 16]))
    result = ps.simulate(requests, "vllm-v1", **CACHED)
    assert result.requests["cached_tokens"].tolist() == [0, 16]
    assert computed(result)["num_tokens"].tolist() == [21 + 5, 2]
    assert computed(result)["num_physical_blocks"].tolist() == [6 + 2, 6 + 2]
    assert result.summary["prefix"] == {"cached_tokens": 16, "share": 16 / 42}


def test_what_a_finished_request_computed_is_cached_until_it_is_taken() -> None:
    requests = trace((0, 21, 2), (1, 21, 2), prefix_tokens=np.array([21, 21]))
    result = ps.simulate(requests, "vllm-v1", **CACHED)
    assert result.requests["cached_tokens"].tolist() == [0, 20]
    # The second request takes five of the first one's full blocks over; nothing else was full.
    assert computed(result)["cached"].tolist() == [0, 0, 0, 0]
    other = ps.simulate(requests.with_columns({"prefix_tokens": np.array([8, 8])}), "vllm-v1", **CACHED)
    assert computed(other)["cached"].tolist() == [0, 0, 3 * 4, 3 * 4]


def test_a_preempted_request_finds_its_own_blocks_again() -> None:
    requests = trace((0, 40, 60), (0.01, 40, 60))
    tight = {"num_blocks": 31, "block_size": 4}
    plain = ps.simulate(requests, "vllm-v1", **(OPTIONS | tight))
    cached = ps.simulate(requests, "vllm-v1", **(CACHED | tight))
    assert plain.summary["preemptions"]["recompute"] > 0
    assert plain.steps is not None
    assert cached.steps is not None
    assert cached.steps["num_tokens"].sum() < plain.steps["num_tokens"].sum()


def test_a_round_of_a_conversation_finds_the_round_before_prompt_and_answer() -> None:
    requests = trace((0, 10, 11), (5, 10 + 11 + 3, 4), session_id=np.array([7, 7]))
    result = ps.simulate(requests, "vllm-v1", **CACHED)
    # The last token of the answer was never computed: 20 tokens are cached, five full blocks.
    assert result.requests["cached_tokens"].tolist() == [0, 20]
    apart = requests.with_columns({"session_id": np.array([7, 8])})
    assert ps.simulate(apart, "vllm-v1", **CACHED).requests["cached_tokens"].tolist() == [0, 0]


def test_a_round_that_does_not_hold_the_last_one_is_another_text() -> None:
    requests = trace((0, 10, 11), (5, 20, 4), session_id=np.array([7, 7]))
    assert ps.simulate(requests, "vllm-v1", **CACHED).requests["cached_tokens"].tolist() == [0, 0]


@pytest.mark.parametrize("block_size", [1, 2, 6, 16])
def test_hash_ids_say_what_is_shared_at_any_block_size(block_size: int) -> None:
    requests = trace((0, 40, 2), (1, 40, 2), hash_ids=[(1, 2, 3, 4), (1, 2, 9, 4)], hash_block_size=10)
    result = ps.simulate(requests, "vllm-v1", **(CACHED | {"block_size": block_size}))
    assert result.requests["cached_tokens"].tolist() == [0, 20 // block_size * block_size]


def test_mooncakes_conversations_hit_as_often_as_upstream_says(shared: Path) -> None:
    requests = ps.make_trace(shared / "data" / "mooncake_fast25_conversation.parquet")
    result = ps.simulate(
        requests,
        "vllm-v1",
        steps="none",
        enable_prefix_caching=True,
        block_size=512,
        num_blocks=1_000_000,
        max_num_seqs=100_000,
        max_num_batched_tokens=100_000,
        max_model_len=200_000,
        cost="affine:0.01,1e-6,1e-9",
    )
    blocks = int((-(-requests.prompt_tokens // 512)).sum())
    hits = int(result.requests["cached_tokens"].sum()) // 512
    print(f"{hits} of {blocks} blocks hit: {100 * hits / blocks:.2f} %, upstream's ideal 36.6 %")
    assert 100 * hits / blocks == pytest.approx(36.6, abs=0.05)

"""vLLM v1's rules that the golden logs do not show: conversations, and hashes at any block size."""

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

"""Block plans beside those of vLLM 0.33.0's own planner: of every log, and of models as they are released."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from pagesim.hardware.gpus import GIB
from pagesim.models import model
from pagesim.sizing import BlockPlan, plan_blocks

LAYOUTS = Path(__file__).parent / "layouts"
LOGGED = [json.loads(line) for line in (LAYOUTS / "plans.jsonl").read_text().splitlines()]


def layers(name: str) -> tuple[Any, ...]:
    return model(str(LAYOUTS / f"{name}.toml")).cache_layers


def groups(plan: BlockPlan) -> list[list[Any]]:
    """The groups of a plan, those alike and side by side as one with their number."""
    found = [
        [
            group.kind,
            len(group.layers),
            group.block_size,
            group.page_bytes,
            group.real_pages[0],
            group.bytes,
        ]
        for group in plan.groups
    ]
    return [[len(list(alike)), *each] for each, alike in groupby(found)]


@pytest.mark.parametrize("logged", LOGGED, ids=lambda logged: logged["log"])
def test_a_plan_is_that_of_the_log_in_every_field(logged):
    batches = 2 if logged.get("async_scheduling", True) else 1
    plan = plan_blocks(
        layers(logged["model"]),
        max_model_len=logged["max_model_len"],
        in_flight_tokens=batches * logged["max_num_batched_tokens"],
        num_blocks=logged["num_blocks"],
        prefix_caching=logged.get("enable_prefix_caching", True),
        hybrid=logged.get("hybrid", True),
    )
    assert plan.starts
    assert groups(plan) == logged["groups"]
    for field in ("bytes_per_block", "scheduler_block", "hash_block", "tokens", "state_mode"):
        assert getattr(plan, field) == logged[field]
    assert round(plan.concurrency, 3) == logged["concurrency"]


def test_half_the_memory_holds_more_than_half_the_requests_where_one_batch_is_in_flight():
    def concurrency(batches: int) -> str:
        plan = plan_blocks(
            layers("gemma3-27b"),
            max_model_len=32768,
            in_flight_tokens=batches * 8192,
            cache_bytes=20 * GIB,
        )
        assert plan.num_blocks == 16384
        return f"{plan.concurrency:.2f}"

    assert (concurrency(2), concurrency(1)) == ("1.91", "2.97")

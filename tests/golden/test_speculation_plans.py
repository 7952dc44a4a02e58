"""Block plans with drafts, as a user asks for them, beside those of vLLM 0.33.0's own planner."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from pagesim.hardware.gpus import GIB
from pagesim.setup.block_plans import block_plan
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.system import System
from pagesim.sizing import BlockPlan

GOLDEN = Path(__file__).parent
PLANNED = [json.loads(line) for line in (GOLDEN / "speculation" / "plans.jsonl").read_text().splitlines()]


def located(name: str) -> str:
    """The layers of a log's model, or a model that pagesim knows by that name."""
    files = [GOLDEN / folder / f"{name}.toml" for folder in ("layouts", "speculation")]
    return next((str(file) for file in files if file.is_file()), name)


def planned(options: dict[str, Any], cache_gib: int) -> BlockPlan:
    given = {**options, "model": located(options["model"])}
    if "speculative_config" in given:
        config = given["speculative_config"]
        beside = {"model": located(config["model"])} if "model" in config else {}
        given["speculative_config"] = json.dumps({**config, **beside})
    common = {"policy": "vllm-v1", "max_model_len": 32768, "max_num_batched_tokens": 8192}
    plan = block_plan(EngineConfig(System(**common, kv_cache_dtype="bf16").model_copy(update=given)))
    return plan.holding(cache_gib * GIB // plan.bytes_per_block)


@pytest.mark.parametrize(
    "row",
    PLANNED,
    ids=lambda row: "-".join(
        [row["options"]["model"], *map(str, row["options"].get("speculative_config", {}).values())]
    ),
)
def test_a_plan_with_drafts_is_that_of_the_planner_in_every_field(row: dict[str, Any]) -> None:
    plan = planned(row["options"], row["cache_gib"])
    groups = [
        [
            *(group.kind, len(group.layers), plan.drafting(group), group.block_size),
            *(group.page_bytes, group.real_pages[0], group.bytes, group.most_blocks),
        ]
        for group in plan.groups
    ]
    assert [[len(list(alike)), *each] for each, alike in groupby(groups)] == row["groups"]
    for field in ("num_blocks", "bytes_per_block", "scheduler_block", "hash_block", "tokens", "state_mode"):
        assert getattr(plan, field) == row[field], field
    assert round(plan.concurrency, 3) == row["concurrency"]
    assert (not plan.beyond_graphs(row["options"]["max_num_seqs"])) == row["starts"]

"""Block plans beside those of vLLM 0.33.0's own planner: of every log, and of models as they are released."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

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
    plan.check_start()
    assert groups(plan) == logged["groups"]
    for field in ("bytes_per_block", "scheduler_block", "hash_block", "tokens", "state_mode"):
        assert getattr(plan, field) == logged[field]
    assert round(plan.concurrency, 3) == logged["concurrency"]


class Row(NamedTuple):
    """What the planner said of a model with 40 GiB for its cache and requests of 32,768 tokens."""

    model: str
    groups: list[tuple[int, str, int, int]]  # how many, kind, layers, tokens a block
    bytes_per_block: int
    blocks: int
    padding: float  # %
    tokens: int
    concurrency: float
    options: dict[str, Any] | None = None


ROWS = [
    Row("llama3.1-8b", [(1, "full", 32, 16)], 2097152, 20480, 0, 327680, 10.0),
    Row("llama3.1-8b", [(1, "full", 32, 16)], 1048576, 40960, 0, 655360, 20.0, {"kv_dtype": "fp8"}),
    Row("mistral-small-3", [(1, "full", 40, 16)], 2621440, 16384, 0, 262144, 8.0),
    Row("mistral-7b-v0.1", [(1, "window", 32, 16)], 2097152, 20480, 0, 523878, 15.99),
    Row("gpt-oss-20b", [(1, "window", 12, 16), (1, "full", 12, 16)], 393216, 109226, 0, 1161673, 35.45),
    Row("gpt-oss-120b", [(1, "window", 18, 16), (1, "full", 18, 16)], 589824, 72817, 0, 774445, 23.63),
    Row(
        "gpt-oss-120b",
        [(1, "window", 18, 16), (1, "full", 18, 16)],
        *(589824, 72817, 0, 928792, 28.34),
        {"in_flight_tokens": 8192},
    ),
    Row(
        "gemma3-27b",
        [(4, "window", 9, 16), (2, "window", 8, 16), (1, "full", 10, 16)],
        *(1310720, 32768, 11.4, 125115, 3.82),
    ),
    Row(
        "gemma3-27b",
        [(4, "window", 9, 16), (2, "window", 8, 16), (1, "full", 10, 16)],
        *(1310720, 32768, 11.4, 270191, 8.25),
        {"in_flight_tokens": 4096},
    ),
    Row("gemma3-27b", [(1, "full", 62, 16)], 8126464, 5285, 0, 84560, 2.58, {"hybrid": False}),
    Row("llama4-scout", [(1, "full", 48, 16)], 3145728, 13653, 0, 218448, 6.67, {"hybrid": False}),
    Row(
        "llama4-scout",
        [(3, "chunk", 12, 16), (1, "full", 12, 16)],
        *(786432, 54613, 0, 268864, 8.21),
    ),
    Row("deepseek-v3", [(1, "latent", 61, 16)], 1124352, 38199, 0, 611184, 18.65),
    Row("deepseek-v3", [(1, "latent", 61, 64)], 2248704, 19099, 0, 1222336, 37.30, {"kv_dtype": "fp8"}),
    Row("deepseek-v3.2", [(1, "latent", 122, 64)], 3076352, 13961, 0, 893504, 27.27, {"kv_dtype": "fp8"}),
    Row(
        "qwen3-next-80b",
        [(3, "state", 12, 576), (1, "full", 12, 576)],
        *(14155776, 3034, 5.2, 1506335, 45.97),
    ),
    Row(
        "qwen3-next-80b",
        [(3, "state", 12, 1088), (1, "full", 12, 1088)],
        *(13369344, 3212, 1.1, 2631270, 80.3),
        {"kv_dtype": "fp8"},
    ),
    Row(
        "qwen3-next-80b",
        [(3, "state", 12, 32768), (1, "full", 12, 544)],
        *(13369344, 3212, 1.1, 1644544, 50.19),
        {"prefix_caching": False},
    ),
    Row(
        "qwen3.5-35b-a3b",
        [(3, "state", 10, 1088), (1, "full", 10, 1088)],
        *(22282240, 1927, 2.8, 1578598, 48.175),
    ),
    Row(
        "jamba-1.5-mini",
        [(7, "state", 4, 80), (1, "full", 4, 80)],
        *(1310720, 32768, 4.4, 2532409, 77.28),
    ),
    Row(
        "nemotron-h-8b",
        [(6, "state", 4, 1040), (1, "full", 4, 1040)],
        *(17039360, 2520, 0.1, 1651507, 50.4),
    ),
    Row(
        "nemotron-3-nano",
        [(3, "state", 6, 2096), (1, "state", 5, 2096), (1, "full", 6, 2096)],
        *(12877824, 3335, 3.8, 3902902, 119.1),
    ),
    Row(
        "falcon-h1-7b",
        [(1, "full", 44, 1568), (1, "state", 44, 1568)],
        *(70647808, 607, 0.4, 828757, 25.29),
    ),
    Row(
        "granite-4-h-small",
        [(9, "state", 4, 528), (1, "full", 4, 528)],
        *(8650752, 4964, 0.6, 1807337, 55.16),
    ),
    Row(
        "granite-4-h-small",
        [(9, "state", 4, 32768), (1, "full", 4, 528)],
        *(8650752, 4964, 0.6, 2259171, 68.94),
        {"prefix_caching": False},
    ),
]


def name_of(row: Row) -> str:
    return " ".join([row.model, *(f"{name}={value}" for name, value in (row.options or {}).items())])


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_a_released_model_has_the_blocks_that_vllm_plans_for_it(row):
    given = {"in_flight_tokens": 2 * 8192, **(row.options or {})}
    plan = plan_blocks(layers(row.model), max_model_len=32768, cache_bytes=40 * GIB, **given)
    plan.check_start()
    assert [tuple(group[:4]) for group in groups(plan)] == row.groups
    assert (plan.bytes_per_block, plan.num_blocks) == (row.bytes_per_block, row.blocks)
    assert plan.tokens == row.tokens
    assert plan.concurrency == pytest.approx(row.concurrency, abs=0.01)
    assert 100 * plan.padding == pytest.approx(row.padding, abs=0.05)


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

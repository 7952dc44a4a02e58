"""Block plans of models with mixed layers beside what vLLM's engines printed when they started."""

from __future__ import annotations

from math import ceil
from typing import Any

import pytest

from pagesim.experiments.plan import blocks_behind
from pagesim.hardware.gpus import GIB
from pagesim.models.layers import WindowLayer
from pagesim.sizing import BlockPlan, plan_blocks
from tests.pages import module_of

PAGE = module_of("docs/make_hybrid_plan.py")
POSTED = PAGE.posted()
WINDOWS = [
    log
    for log in POSTED
    if any(isinstance(layer, WindowLayer) for layer in log.layers)
    and len({layer.bytes_per_token() for layer in log.layers}) == 1  # else they cannot be kept alike
]
GROUPED = [log for log in POSTED if len(log.planned().groups) > 1]


def name_of(log: Any) -> str:
    return f"{log.row['source']} {log.row['model']} {log.row['available_gib']}"


def changed(log: Any, **cells: str) -> Any:
    return PAGE.Posted({**log.row, **cells})


def only(model: str) -> Any:
    (log,) = [log for log in POSTED if log.row["model"].startswith(model)]
    return log


def test_there_are_eighteen_logs_of_eleven_models_and_ten_releases():
    assert len(POSTED) >= 18
    assert len({log.row["model"] for log in POSTED}) >= 11
    assert len({log.row.get("release") for log in POSTED}) >= 10
    assert {type(layer).kind for log in POSTED for layer in log.layers} == {
        "full",
        "window",
        "chunk",
        "state",
    }
    assert all(log.row["link"].startswith("https://github.com/") for log in POSTED)


@pytest.mark.parametrize("log", POSTED, ids=name_of)
def test_within_the_rounding_of_the_gib_a_plan_prints_both_lines_of_a_log(log):
    least, most = log.between
    assert most - least <= ceil(0.01 * GIB / log.planned().bytes_per_block), (
        "no wider than a hundredth of a GiB"
    )
    found = log.at()
    assert found
    assert found[-1] - found[0] < len(log.planned().groups), "the lines tell the blocks"


@pytest.mark.parametrize("log", POSTED, ids=name_of)
def test_with_the_gib_alone_a_plan_comes_within_the_rounding_of_the_concurrency(log):
    plan = log.planned(int(log.available_gib * GIB) // log.planned().bytes_per_block)
    printed = float(log.row.get("concurrency", int(log.row["tokens"]) / int(log.row["max_model_len"])))
    blocks = ceil(0.005 * GIB / plan.bytes_per_block)
    assert plan.concurrency == pytest.approx(printed, abs=0.005 + blocks / plan.most_blocks)


@pytest.mark.parametrize("log", [log for log in POSTED if "block_size" in log.row], ids=name_of)
def test_a_block_has_room_for_a_state_as_the_log_says(log):
    assert log.block_size == int(log.row["block_size"])


@pytest.mark.parametrize("log", [log for log in POSTED if "padding_layers" in log.row], ids=name_of)
def test_a_plan_pads_as_many_layers_as_the_log_says(log):
    assert log.padding_layers == int(log.row["padding_layers"])


@pytest.mark.parametrize("log", WINDOWS, ids=name_of)
def test_no_log_of_a_model_with_windows_comes_out_if_they_are_kept_as_full_attention(log):
    def plan(num_blocks: int) -> BlockPlan:
        return plan_blocks(
            log.layers,
            max_model_len=int(log.row["max_model_len"]),
            in_flight_tokens=log.in_flight_tokens,
            num_blocks=num_blocks,
            kv_dtype=log.row.get("kv_cache_dtype", "bf16"),
            tp=int(log.row["tensor_parallel_size"]),
            hybrid=False,
        )

    least, most = blocks_behind(log.available_gib, plan(1).bytes_per_block)
    printed = float(log.row["concurrency"])
    assert not plan(least).concurrency - 0.005 <= printed <= plan(most).concurrency + 0.005


def test_since_0_26_a_log_counts_two_batches_in_flight_and_before_it_one():
    assert not changed(only("medgemma-27b"), async_scheduling="0").at()
    assert not changed(only("gemma-4-26b"), release="0.26.0").at()


def test_by_default_a_release_to_0_20_finds_no_prompts_beside_states():
    assert not changed(only("nemotron"), enable_prefix_caching="1").at()


@pytest.mark.parametrize("log", GROUPED, ids=name_of)
def test_the_tokens_of_a_log_are_of_one_group_to_0_20_0_and_of_requests_since(log):
    other = "0.20.1" if log.release < (0, 20, 1) else "0.20.0"
    states = "1" if log.planned().state_mode == "align" else "0"
    assert not changed(log, release=other, enable_prefix_caching=states).at()


def test_the_table_in_the_docs_is_what_the_plans_say():
    assert PAGE.PAGE.read_text(encoding="utf-8") == PAGE.page(), "run: python docs/make_hybrid_plan.py"

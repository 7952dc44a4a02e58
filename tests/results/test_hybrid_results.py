"""Results of caches of several KV groups: what is stored of each group, and that it adds up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import pagesim as ps
from pagesim.accounting.ledger import ENTRIES, GROUP_ENTRIES, HYBRID_ENTRIES
from pagesim.accounting.timeline import Timeline
from pagesim.api import run
from pagesim.results import plots, trace_events
from pagesim.results.result import Result
from pagesim.results.step_table import STEP_COLUMNS
from pagesim.setup.system import System

MODELS: dict[str, dict[str, Any]] = {
    "windows": {"model": "gpt-oss-20b", "gpu": "h100"},
    "padded windows": {"model": "gemma3-27b", "gpu": "h200"},
    "states": {"model": "jamba-1.5-mini", "gpu": "h200", "tensor_parallel_size": 2},
    "chunks": {
        "model": "llama4-scout",
        "gpu": "h200",
        "tensor_parallel_size": 4,
    },
}


def trace() -> ps.Trace:
    """Return conversations of three turns each."""
    requests = ps.make_trace("sharegpt", arrivals="poisson", rate=8.0, num_requests=60, seed=2)
    return requests.with_columns({"session_id": np.arange(len(requests)) // 3})


def replayed(name: str, **options: Any) -> Result:
    chosen = {"num_blocks": 400, "max_model_len": 2048, **MODELS[name], **options}
    return ps.simulate(trace(), "vllm-v1", **{"steps": "iterations", **chosen})


@pytest.mark.parametrize("name", MODELS)
def test_the_parts_of_the_groups_and_what_is_free_are_all_of_the_cache(name: str) -> None:
    result = replayed(name)
    memory, steps = result.summary["memory"], result.steps
    assert steps is not None
    entries = list(HYBRID_ENTRIES)
    assert (steps[entries].sum(axis=1) == memory["num_blocks"] * memory["page_bytes"]).all()
    held = [column for column in steps if column.startswith("held_blocks_")]
    assert len(held) == len(memory["groups"]) > 1
    assert (steps[held].sum(axis=1) == steps["num_physical_blocks"]).all()
    for kind in ("per_iteration", "per_second"):
        strict = memory["strict"][kind]
        assert list(strict) == entries
        assert sum(strict.values()) == pytest.approx(100)
        for entry in GROUP_ENTRIES:
            parts = sum(group[kind][entry] for group in memory["groups"].values())
            assert parts == pytest.approx(strict[entry])
        paper = memory["paper"][kind]
        assert sum(paper.values()) == pytest.approx(100)
        assert paper["token_states"] == pytest.approx(strict["used"] + strict["state"])
        assert paper["reservation"] == paper["internal"] == 0


@pytest.mark.parametrize("name", MODELS)
def test_a_fast_forward_stores_what_stepping_stores(name: str) -> None:
    results = [replayed(name, fast_forward=fast_forward) for fast_forward in (True, False)]
    forwarded, stepped = (result.steps for result in results)
    assert forwarded is not None
    pd.testing.assert_frame_equal(forwarded, stepped)
    for kind in ("memory", "sharing"):
        assert results[0].summary[kind] == results[1].summary[kind]


def test_groups_are_named_by_number_and_rule_and_say_what_of_a_block_they_fill() -> None:
    memory = replayed("padded windows").summary["memory"]
    by_name = memory["groups"]
    assert list(by_name) == [*(f"{number}:window-1024" for number in range(6)), "6:full"]
    assert by_name["6:full"]["layers"] == 10
    # All layers keep as much of a token, and the 52 with windows are no multiple of 10.
    page = memory["page_bytes"]
    assert sum(group["layers"] for group in by_name.values()) == 62
    for group in by_name.values():
        assert group["filled_bytes"] * 10 == page * group["layers"]
        assert (group["per_iteration"]["padding"] > 0) == (group["layers"] < 10)


def test_each_kind_of_memory_has_its_entries() -> None:
    means = {name: replayed(name).summary["memory"]["strict"]["per_iteration"] for name in MODELS}
    assert means["windows"]["out_of_window"] > 0 == means["windows"]["state"]
    assert means["states"]["state"] > 0 == means["states"]["out_of_window"]
    assert all(mean["unused_reservation"] == mean["external"] == 0 for mean in means.values())


def test_a_plain_cache_has_the_seven_entries_in_slots_and_no_more() -> None:
    result = ps.simulate(trace(), "vllm-v1", num_blocks=400, steps="iterations")
    memory, steps = result.summary["memory"], result.steps
    assert steps is not None
    assert list(steps) == list(STEP_COLUMNS)
    assert list(memory["strict"]["per_iteration"]) == list(ENTRIES)
    assert "groups" not in memory
    assert "page_bytes" not in memory


def test_a_table_without_rows_has_the_columns_of_any_other() -> None:
    some = replayed("states").steps
    assert some is not None
    nothing = ps.simulate(
        ps.Trace(np.array([1.0]), np.array([9]), np.array([9])),
        "vllm-v1",
        num_blocks=400,
        until=0.5,
        steps="iterations",
        **MODELS["states"],
    ).steps
    assert nothing is not None
    assert nothing.empty
    assert list(nothing) == list(some)


def test_a_result_is_stored_drawn_and_read_back(tmp_path: Path) -> None:
    result = replayed("states")
    ps.load(result.save(tmp_path / "states"))
    plots.save_run_figures(result, tmp_path)
    assert (tmp_path / "memory.png").exists()
    shown = plots.memory_over_time(result).axes[0].get_legend_handles_labels()[1]
    assert plots.LABELS["state"] in shown
    assert plots.LABELS["padding"] in shown
    plain = ps.simulate(trace(), "vllm-v1", num_blocks=400).summary
    bars = plots.memory_bars({"states": result.summary, "plain": plain}).axes[0]
    assert plots.LABELS["state"] in bars.get_legend_handles_labels()[1]
    heights = np.array([[bar.get_height() for bar in group] for group in bars.containers])
    assert heights.sum(axis=0) == pytest.approx([100, 100])


def test_the_time_line_counts_bytes(tmp_path: Path) -> None:
    timeline = Timeline(every=False)
    system = System(policy="vllm-v1", num_blocks=400, max_model_len=2048, **MODELS["states"])
    result = run(system, trace(), timeline=timeline)
    memory = result.summary["memory"]
    capacity = memory["num_blocks"] * memory["page_bytes"]
    assert result.steps is not None
    trace_events.write(tmp_path / "x", timeline, result.steps, title="x", capacity=capacity)
    events = json.loads((tmp_path / "x").read_text())["traceEvents"]
    counts = [event["args"] for event in events if event["name"] == trace_events.MEMORY_BYTES]
    assert counts
    assert all(list(each) == list(HYBRID_ENTRIES) and sum(each.values()) == capacity for each in counts)
    assert not any(event["name"] == trace_events.MEMORY for event in events)

"""Every golden log is replayed iteration by iteration over memory with tables: all its cells are equal.

A short log of each family of options is replayed with fast-forward over memory that counts its blocks, too.
That these ways, and the two between them, decide the same is what random systems are for
(`tests/sim/test_random_systems.py`). `pagesim golden` replays every log both ways, which a slow test of the
compiled core calls.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import pagesim as ps
from pagesim.experiments.golden import (
    CLOCK_TOLERANCE_S,
    GoldenLog,
    compare_log,
    first_difference,
    read_manifest,
    read_manifests,
)

HERE = Path(__file__).resolve().parent
LOGS = {log.name: log for log in read_manifests(HERE)}

QUICK = {
    "v0_e1_prompt_gt_cache",
    "v0_e2_prompt_gt_limit",
    "v0_e3_n4_partial_block",
    "v0_e3b_n4_full_block",
    "v0_swap",
    "v1_112_default",
    "v1_112_unchunked",
    "v1_019_sync",
    "v1_019_threshold",
    "v1_019_async",
    "v1_330_default",
    "v1_330_prefix",
    "b_default",
    "c_gptoss_nocache",
    "c_qwen",
    "c_toy_mixed",
    "d_small_arc",
    "e_ngram3",
    "e_prio",
    "now_delayer_queue",
    "now_dp2",
    "now_dp4_delayer",
    "now_interval_slots",
    "now_priority",
    "one_token",
    "p_dp2_moe_short",
    "p_dp4_hybrid",
    "r3_8",
    "sglang_chunk1024_p4_reject",
    "sglang_noradix_ignore_eos",
    "sglang_swa_w128",
    "sglang_turns_lpm_p8_chunk256",
    "sosp_block256_vllm_2.0",
    "sosp_fig2_orca-max",
    "states_nobuffer",
    "states_p64_c128",
    "unequal",
}
"""A short log of each kind, which is quick in both ways."""

FORWARDED = QUICK | {
    "c_jamba",
    "h_pp2_draft",
    "h_qwen8b_draft",
    "h_step35_k3",
    "host_writeback",
    "now_eagle",
    "p_dcp4",
    "p_pp2",
    "r4_79",
    "states_nextn_nobuffer",
    "swa_eagle3",
}
"""What is replayed with fast-forward: those, and the shortest log of each family that has no quick one."""


def check(log: GoldenLog, *, stepping: bool, tables: bool) -> None:
    """Check that a replay differs in no cell from a log."""
    if log.missing is not None:
        pytest.skip(f"{os.path.relpath(log.missing, HERE.parents[1])}, beside the repository, is absent")
    difference = compare_log(log, stepping=stepping, tables=tables).difference
    assert difference is None, str(difference)


@pytest.mark.slow_but(*QUICK)
@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)
def test_every_iteration_and_every_request_is_that_of_the_golden_log(log: GoldenLog) -> None:
    check(log, stepping=True, tables=True)


@pytest.mark.slow_but(*QUICK)
@pytest.mark.parametrize("name", sorted(FORWARDED))
def test_with_fast_forward_over_counted_memory_they_are_as_well(name: str) -> None:
    check(LOGS[name], stepping=False, tables=False)


def test_no_log_lies_here_without_an_entry_in_the_manifest() -> None:
    listed = {file.name for log in LOGS.values() for file in log.tables.values()}
    assert {file.name for file in HERE.glob("*.parquet")} <= listed


def test_every_quick_log_has_an_entry_in_the_manifest() -> None:
    assert LOGS.keys() >= FORWARDED


def test_every_column_of_every_log_is_compared() -> None:
    assert {log.name: log.not_compared for log in LOGS.values() if log.not_compared} == {}


@pytest.mark.parametrize(
    ("name", "vllm_version"),
    [
        ("v0_recompute", "0.2.0"),
        ("v1_112_prefix", "0.19.0"),
        ("v1_112_unchunked", "0.19.0"),
        ("v1_019_prefix", "0.11.2"),
        ("v1_019_prefix", "0.33.0"),
        ("v1_019_threshold", "0.33.0"),
        ("v1_019_unchunked", "0.11.2"),
        ("v1_330_prefix", "0.19.0"),
        ("v1_330_threshold", "0.19.0"),
    ],
)
def test_a_release_is_told_from_another_by_its_log(name: str, vllm_version: str) -> None:
    log = LOGS[name]
    other = replace(log, options={**log.options, "vllm_version": vllm_version})
    assert compare_log(other, stepping=False).difference is not None


# The comparison notices what differs, and says where.


def changed(
    tmp_path: Path, table: str, row: int, column: str, change: Any, name: str = "v0_020_recompute"
) -> GoldenLog:
    """Return a log of which one cell was changed."""
    log = LOGS[name]
    frame = pd.read_parquet(log.tables[table])
    frame.loc[row, column] = change(frame.loc[row, column])
    file = tmp_path / "changed.parquet"
    frame.to_parquet(file)
    return replace(log, tables={**log.tables, table: file})


@pytest.mark.parametrize(
    ("table", "row", "column", "change"),
    [
        ("steps", 2000, "num_waiting", lambda cell: cell + 1),
        ("steps", 3569, "free_cpu_blocks", lambda cell: cell - 1),
        ("steps", 0, "clock", lambda cell: cell + 2 * CLOCK_TOLERANCE_S),
        ("requests", 299, "finish_s", lambda cell: cell - 2 * CLOCK_TOLERANCE_S),
        ("requests", 7, "finish_s", lambda cell: np.nan),
        ("requests", 7, "recomputes", lambda cell: cell + 1),
        ("requests", 0, "status", lambda cell: "ignored"),
        ("requests", 1, "output_tokens", lambda cell: f"{cell};1"),
    ],
)
def test_a_single_changed_cell_is_noticed_and_named(
    tmp_path: Path, table: str, row: int, column: str, change: Any
) -> None:
    log = changed(tmp_path, table, row, column, change)
    difference = compare_log(log, stepping=False).difference
    assert difference is not None
    assert (difference.table, difference.row, difference.columns) == (table, row, (column,))
    text = str(difference)
    assert text.startswith(f"{table}, row {row}, {column}: {difference.ours}, the log has ")
    assert f" > {row} " in f"{text.splitlines()[1]} "


@pytest.mark.parametrize(
    "column",
    ["scheduled_crc", "tables_crc", "cached_hashes", "num_prefill_tokens", "prefix_hit_tokens", "exec_start"],
)
def test_what_a_log_of_today_says_beyond_the_steps_table_is_really_compared(
    tmp_path: Path, column: str
) -> None:
    log = changed(tmp_path, "steps", 1000, column, lambda cell: cell + 1, "b_default")
    difference = compare_log(log, stepping=True, tables=True).difference
    assert difference is not None
    assert (difference.row, difference.columns) == (1000, (column,))


def test_a_clock_may_differ_by_less_than_a_nanosecond(tmp_path: Path) -> None:
    log = changed(tmp_path, "steps", 2000, "clock", lambda cell: cell + CLOCK_TOLERANCE_S / 2)
    assert compare_log(log, stepping=False).difference is None


def test_a_missing_row_is_noticed(tmp_path: Path) -> None:
    log = LOGS["v0_020_recompute"]
    file = tmp_path / "shorter.parquet"
    pd.read_parquet(log.tables["steps"]).iloc[:-1].to_parquet(file)
    difference = compare_log(replace(log, tables={**log.tables, "steps": file}), stepping=False).difference
    assert difference is not None
    assert str(difference).startswith("steps: 3,570 rows, the log has 3,569\n")
    assert difference.row == 3569


def test_the_first_difference_is_that_of_the_first_row_and_the_logs_first_column() -> None:
    ours = pd.DataFrame({"a": [1, 2, 3], "b": [0.5, np.nan, 0.5], "more": ["x", "y", "z"]})
    theirs = pd.DataFrame({"b": [0.5, np.nan, 0.6], "a": [1, 2, 4]})
    assert first_difference("steps", ours.iloc[:2], theirs.iloc[:2]) is None
    difference = first_difference("steps", ours, theirs)
    assert difference is not None
    assert (difference.row, difference.column, difference.ours, difference.theirs) == (2, "b", 0.5, 0.6)
    assert difference.columns == ("b", "a")


# What a manifest may not say.


def test_a_column_that_pagesim_lacks_is_compared_or_named_with_a_reason(tmp_path: Path) -> None:
    log = LOGS["v0_e3_n4_partial_block"]
    file = tmp_path / "wider.parquet"
    pd.read_parquet(log.tables["steps"]).assign(temperature=20).to_parquet(file)
    wider = replace(log, tables={**log.tables, "steps": file})
    with pytest.raises(ps.PagesimError, match=r"lack the column temperature; not_compared must name"):
        compare_log(wider, stepping=False)
    excused = replace(wider, not_compared={"steps.temperature": "pagesim has no thermometer"})
    assert compare_log(excused, stepping=False).difference is None
    with pytest.raises(ps.PagesimError, match=r"not_compared names steps\.temperature, which the log lacks"):
        compare_log(replace(excused, tables=log.tables), stepping=False)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[log.a]\nengine = 'x'", r"log\.a\.trace is .*Field required"),
        ("[log.a]\nengine = 'x'\ntrace = 't'\npolicy = 'p'\nspeed = 1", r"log\.a\.speed is 1: Extra"),
        ("[log", "is no TOML file"),
    ],
)
def test_a_manifest_that_says_something_else_is_refused_in_a_sentence(
    tmp_path: Path, text: str, sentence: str
) -> None:
    file = tmp_path / "golden.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ps.PagesimError, match=sentence):
        read_manifest(file)


def test_a_folder_without_a_manifest_and_two_logs_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ps.PagesimError, match="holds no manifest of golden logs"):
        read_manifests(tmp_path)
    for name in ("a", "b"):
        (tmp_path / f"{name}.toml").write_text(
            "[log.twice]\nengine = 'x'\ntrace = 't'\npolicy = 'p'\n", encoding="utf-8"
        )
    with pytest.raises(ps.PagesimError, match="log twice is in another manifest as well"):
        read_manifests(tmp_path)


def test_the_empty_schedule_that_ends_a_busy_period_is_left_out_where_the_log_lacks_it() -> None:
    from pagesim.experiments.golden.columns import alike

    log = replace(LOGS["v1_330_default"], tables={})
    load = ["num_batched_tokens", "num_running", "num_waiting", "num_swapped"]
    ours = pd.DataFrame({"step": range(5), "clock": [0.0, 1.0, 1.0, 5.0, 6.0]})
    ours[load] = 0
    ours.loc[[0, 1, 3], "num_running"] = 1  # the third and the last row are the engine's when it is empty
    theirs = ours.iloc[[0, 1, 3]].assign(step=range(3)).reset_index(drop=True)
    assert first_difference("steps", *alike(log, "steps", ours, theirs)) is None
    whole = replace(log, without_flush=False)
    assert first_difference("steps", *alike(whole, "steps", ours, theirs)) is not None

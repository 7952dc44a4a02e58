"""What of the oracles can be said without vLLM; `make golden` does the rest."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from compare import compare, difference, without_flush
from options import options_of
from remake import ENGINES, GOLDEN, golden_logs, has_driver
from simulated import MAX_EMPTY_STEPS, Clock, StepCost, check_progress
from traces import Tokens, read_trace

from pagesim.experiments.golden import GoldenLog

HERE = Path(__file__).resolve().parent
LOGS = {log.name: log for log in golden_logs()}


@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)
def test_every_golden_log_has_a_driver_that_knows_its_options_or_is_listed_with_a_reason(
    log: GoldenLog,
) -> None:
    if has_driver(log):
        options = options_of(ENGINES[log.policy], log.options)
        assert log.engine == f"vLLM {options.vllm_version}"
    else:
        listed = re.findall(r"^\| `([^`]+)`", (HERE / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
        assert any(fnmatch(log.name, name) for name in listed)


def test_no_golden_log_lies_anywhere_without_an_entry_in_a_manifest() -> None:
    listed = {file for log in LOGS.values() for file in log.tables.values()}
    assert set(GOLDEN.rglob("*.parquet")) <= listed


def test_no_log_stands_in_two_manifests() -> None:
    names = [log.name for log in golden_logs()]
    assert sorted(names) == sorted(set(names))


def test_an_option_that_a_driver_does_not_know_is_refused() -> None:
    with pytest.raises(TypeError, match="hybrid"):
        options_of("v1", {**LOGS["b_default"].options, "hybrid": True})


def test_a_step_takes_the_affine_cost_of_the_manifest() -> None:
    cost = StepCost.parse(LOGS["v0_n4"].options["cost"])
    assert cost == StepCost(0.010, 1e-5, 1e-7)
    assert cost.step_s(tokens=1000, context=20_000) == pytest.approx(0.022)


# The prompts that vLLM is given.


def test_prompts_of_one_prefix_begin_with_equal_tokens_and_share_no_other() -> None:
    rows = {row.row: row for row in read_trace(GOLDEN / "t300pfx.csv")}
    tokens = Tokens(rows)
    some, other = [row for row in rows.values() if row.prefix == "6"][:2]
    shared = min(some.prefix_tokens, other.prefix_tokens)
    assert tokens.prompt(some)[:shared] == tokens.prompt(other)[:shared]
    assert not set(tokens.prompt(some)[some.prefix_tokens :]) & set(tokens.prompt(other))
    assert len(tokens.prompt(some)) == some.prompt_tokens
    assert tokens.prompt(some) == tokens.prompt(some)


def test_a_follow_up_begins_with_the_prompt_and_the_output_of_its_parent() -> None:
    rows = {row.row: row for row in read_trace(GOLDEN / "today" / "conv.csv")}
    tokens = Tokens(rows)
    child = next(row for row in rows.values() if row.parent is not None)
    parent = rows[child.parent]
    said = [tokens.output(parent.row, 0, at) for at in range(parent.output_tokens[0])]
    begin = tokens.prompt(parent) + said
    assert tokens.prompt(child)[: len(begin)] == begin
    assert len(tokens.prompt(child)) == child.prompt_tokens


def test_every_sample_of_a_row_has_a_length_of_its_own() -> None:
    lengths = {row.output_tokens for row in read_trace(GOLDEN / "t300n4.csv")}
    assert {len(each) for each in lengths} == {1, 4}
    assert (141, 232, 807, 525) in lengths


# The comparison.


def made_of(log: GoldenLog) -> dict[str, list[dict[str, object]]]:
    return {table: pd.read_parquet(file).to_dict("records") for table, file in log.tables.items()}


def test_a_log_is_equal_to_itself_and_stored_as_it_is(tmp_path: Path) -> None:
    log = LOGS["v0_e2_prompt_gt_limit"]
    assert compare(log, made_of(log), tmp_path) == ""
    for file in log.tables.values():
        stored = pd.read_parquet(tmp_path / file.name)
        pd.testing.assert_frame_equal(stored, pd.read_parquet(file), check_dtype=False)


def test_the_empty_schedules_that_end_a_busy_period_are_left_out_and_the_others_stay() -> None:
    steps = pd.DataFrame({"step": range(5), "num_batched_tokens": [7, 0, 0, 0, 3]}).assign(num_swapped=0)
    steps["num_running"] = [1, 0, 0, 1, 1]
    steps["num_waiting"] = [0, 1, 0, 0, 0]
    kept = without_flush(steps)
    assert kept["step"].tolist() == [0, 1, 2, 3]
    assert kept["num_batched_tokens"].tolist() == [7, 0, 0, 3]


@pytest.mark.parametrize(
    ("table", "row", "column", "change"),
    [
        ("steps", 3, "clock", lambda cell: np.nextafter(cell, 1)),
        ("steps", 5, "tables_crc", lambda cell: cell + 1),
        ("steps", 7, "blocks_by_group", lambda cell: cell + 1),
        ("requests", 2, "status", lambda cell: "rejected"),
    ],
)
def test_a_single_changed_bit_is_named(table: str, row: int, column: str, change: Any) -> None:
    file = LOGS["b_small"].tables[table]
    made = pd.read_parquet(file)
    assert difference(table, made, file) == ""
    made.at[row, column] = change(made.at[row, column])
    assert difference(table, made, file).startswith(f"{table}, row {row}, {column}: ")


def test_a_missing_row_and_an_absent_log_are_named() -> None:
    file = LOGS["b_small"].tables["steps"]
    made = pd.read_parquet(file)
    assert difference("steps", made[:-1], file) == "3,473 steps, the golden log has 3,474"
    assert (
        difference("steps", made, file.with_name("new.steps.parquet"))
        == "there is no golden new.steps.parquet"
    )


# The simulated time.


def test_sleep_moves_the_clock_and_every_name_of_the_time_reads_it() -> None:
    clock = Clock()
    clock.sleep(0.001)
    assert clock.time() == clock.monotonic() == clock.perf_counter() == 0.001


def test_an_engine_that_schedules_nothing_for_ever_is_refused() -> None:
    empty = [{"step_s": 0.0}] * (MAX_EMPTY_STEPS - 1)
    check_progress(empty)
    with pytest.raises(RuntimeError, match="nothing was scheduled"):
        check_progress([*empty, {"step_s": 0.0}])
    check_progress([*empty, {"step_s": 0.01}])

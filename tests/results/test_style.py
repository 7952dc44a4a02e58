"""Names, colours and hatchings of parts: one table, in figures and on pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from pagesim.accounting.metrics import STRICT_ENTRIES
from pagesim.results.drawing import areas, load_of, stacks
from pagesim.results.style import (
    ITERATIONS,
    LINES,
    LOADS,
    LOOPS,
    PARTS,
    PHASES,
    TIERS,
    drawn_categories,
    ink,
)
from pagesim.setup.scenario import Scenario
from pagesim.setup.system import System

ROOT = Path(__file__).parents[2]

COLOUR = re.compile(r"#[0-9A-Fa-f]{6}")

STYLED = ("pagesim/results", "pagesim/experiments", "pagesim/cli", "kernels/bench", "docs", "workloads")
"""Folders of what draws."""

ALONE = {
    "pagesim/results/style.py",
    *("pagesim/results/drawing.py", "pagesim/results/tier_plots.py", "workloads/describe.py"),
}
"""The table, files with white that is no part and grey lines, and a room below that of the table."""


TABLES = {
    "": PARTS | PHASES,
    "tier": TIERS,
    "iteration": ITERATIONS,
    "requests": LOADS,
    "numbers": LINES,
    "loop": LOOPS,
}
"""Parts by kind."""


def test_figures_and_scripts_name_no_colours_beside_the_table() -> None:
    known = {part.colour for parts in TABLES.values() for part in parts.values()}
    files = [file for room in STYLED for file in (ROOT / room).rglob("*") if file.suffix in (".py", ".js")]
    assert len(files) > 100
    found = {
        file.relative_to(ROOT).as_posix()
        for file in files
        if known & {colour.upper() for colour in COLOUR.findall(file.read_text("utf-8"))}
    }
    assert found == ALONE


def test_a_stack_and_an_area_have_the_names_and_colours_of_the_table() -> None:
    bars, over_time = Figure().subplots(1, 2)
    drawn = stacks(bars, {"used": [30.0, 60.0], "internal": [70.0, 0.0], "cached": [0.0, 0.0]})
    assert list(drawn) == ["used", "internal fragmentation"]
    areas(over_time, [0, 1], {"used": [30, 60], "free": [70, 40]})
    labels = over_time.get_legend_handles_labels()[1]
    assert labels == ["used", "free"]
    blue = tuple(int("0072B2"[i : i + 2], 16) / 255 for i in (0, 2, 4))
    assert drawn["used"].get_facecolor()[:3] == pytest.approx(blue)
    assert over_time.collections[0].get_facecolor()[0][:3] == pytest.approx(blue)


def test_all_internal_fragmentation_is_one_part_where_categories_are_drawn() -> None:
    plain = ("used", "reserved", "unused_reservation", "rounding", "external", "cached", "free")
    drawn = drawn_categories(plain)
    assert [part["key"] for part in drawn] == ["used", "reserved", "internal", "external", "cached", "free"]
    assert drawn[2]["keys"] == ("unused_reservation", "rounding")
    assert sorted(key for part in drawn_categories(STRICT_ENTRIES) for key in part["keys"]) == sorted(
        STRICT_ENTRIES
    )


@pytest.mark.parametrize(
    ("colour", "readable"),
    [("#0072B2", "white"), ("#004166", "white"), ("#E8E8E8", "black"), ("#F0E442", "black")],
)
def test_ink_can_be_read(colour: str, readable: str) -> None:
    assert ink(colour) == readable


def test_a_title_says_what_was_served_but_not_what_varies() -> None:
    chosen = Scenario(trace="sharegpt", rate=2, duration=60, model="llama-3.1-8b", gpu="h100")
    assert load_of(chosen) == "sharegpt, 2 requests/s, llama-3.1-8b on h100"
    assert load_of(chosen, ["rate", "model"]) == "sharegpt, h100"
    at_a_time = chosen.model_copy(update={"rate": float("inf"), "max_concurrency": 8})
    assert load_of(at_a_time) == "sharegpt, 8 requests at a time, llama-3.1-8b on h100"
    alone = System(model="llama-3.1-70b", gpu="h100", tensor_parallel_size=4)
    assert load_of(alone) == "llama-3.1-70b on 4 × h100"

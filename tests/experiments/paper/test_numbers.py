"""A number of the paper beside ours: errors, bars, verdicts, and the table that they make."""

from __future__ import annotations

import csv as csv_module
import io
from dataclasses import replace

import pytest

from pagesim.experiments.paper import FIGURES
from pagesim.experiments.paper.numbers import (
    CERTAINTIES,
    FITTED,
    Number,
    Range,
    csv,
    published,
    shown,
    shown_range,
)


def number(paper: float | Range | None, ours: float | None, bar: str = "", sure: str = "B") -> Number:
    both = (paper, paper) if isinstance(paper, float) else paper
    return Number("fig0", "a system", "a place", both, sure, ours, bar)


@pytest.mark.parametrize(
    ("bar", "paper", "inside", "outside"),
    [
        ("± 1.5", 20.0, (18.5, 20.0, 21.5), (18.4, 21.6)),
        ("exact", 983.0, (983.0,), (982.0, 984.0)),
        ("± 1", (2.0, 4.0), (1.0, 3.0, 5.0), (0.9, 5.1)),
        ("± 3 %", 100.0, (97.0, 103.0), (96.9, 103.1)),
        ("± 1 %", (603.0, 606.0), (597.0, 603.0, 612.0), (596.9, 612.1)),
        ("± 1 % of what rounds to it", 26.0, (25.5 * 0.99 + 1e-9, 26.0, 26.5 * 1.01 - 1e-9), (25.2, 26.8)),
        ("inside", (1.7, 2.7), (1.7, 2.0, 2.7), (1.69, 2.71)),
    ],
)
def test_a_bar_holds_up_to_its_edge_and_no_further(
    bar: str, paper: float | Range, inside: tuple[float, ...], outside: tuple[float, ...]
) -> None:
    assert [number(paper, ours, bar).verdict for ours in inside] == ["holds"] * len(inside)
    assert [number(paper, ours, bar).verdict for ours in outside] == ["misses"] * len(outside)


def test_what_was_read_by_eye_is_compared_with_how_well_one_reads() -> None:
    assert number(2.0, 2.29, sure="F").verdict == "within reading"
    assert number(2.0, 2.31, sure="F").verdict == "outside reading"


def test_without_a_bar_or_a_value_nothing_is_said() -> None:
    assert number(2.0, 99.0).verdict == "no bar"
    assert number(None, 99.0, "± 1").verdict == "no bar"
    assert number(2.0, None, "± 1").verdict == "not run"
    assert number(30.42, 99.0, FITTED).verdict == "fitted", "what was fitted is no prediction"


def test_an_error_is_ours_less_the_papers_and_none_inside_a_range() -> None:
    assert number(20.0, 18.5).error == -1.5
    assert number((1.7, 2.7), 2.0).error == 0
    assert number((1.7, 2.7), 3.0).error == pytest.approx(0.3)
    assert number((1.7, 2.7), 1.0).error == pytest.approx(-0.7)
    assert number((1.7, 2.7), 1.0).relative == pytest.approx(-0.7 / 1.7)
    assert number(0.0, 1.0).relative is None
    assert number(None, 1.0).error is None


def test_whole_numbers_keep_all_their_digits() -> None:
    assert shown(2_359_296.0) == "2359296"
    assert shown(0.1234567) == "0.123457"
    assert shown_range((603.0, 606.5)) == "603..606.5"
    assert shown_range((26.0, 26.0)) == "26"
    assert shown(float("nan")) == shown(None) == shown_range(None) == ""


def test_the_table_has_the_columns_that_were_promised_and_leaves_empty_what_is_unknown() -> None:
    rows = list(csv_module.reader(io.StringIO(csv([number((1.7, 2.7), 3.0), number(None, None, sure="")]))))
    assert rows == [
        ["figure", "series", "x", "paper", "certainty", "ours", "error"],
        ["fig0", "a system", "a place", "1.7..2.7", "B", "3", "0.3"],
        ["fig0", "a system", "a place", "", "", "", ""],
    ]


def test_the_papers_numbers_are_read_with_their_ranges_and_what_was_promised() -> None:
    fig15 = published("fig15")
    alpaca, sharegpt = fig15["beam, Alpaca", "2"], fig15["beam, ShareGPT", "2"]
    assert (alpaca.paper, alpaca.certainty, alpaca.bar) == ((37.56, 37.56), "B", "± 3")
    assert (sharegpt.paper, sharegpt.certainty, sharegpt.bar) == ((44.3, 66.3), "V", "inside")
    for name in FIGURES:
        for each in published(name).values():
            assert each.certainty in CERTAINTIES
            assert each.verdict == "not run"
            assert replace(each, ours=1.0).verdict != "not run"

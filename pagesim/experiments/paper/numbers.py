"""A number of the paper beside ours: how sure the paper's is, how far ours is off, and what was promised."""

from __future__ import annotations

import csv as csv_reader
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

CERTAINTIES: dict[str, str] = {
    "V": "text of the paper",
    "B": "printed in a figure or table",
    "A": "read in the authors' artifact",
    "D": "derived from these",
    "F": "read off a curve by eye, ±15 %",
    "": "no number of the paper",
}

READING = 0.15
"""How far a number that was read off a curve by eye may be off."""

FITTED = "fitted"
"""In place of a bar: a number that the engine was fitted to, and so no prediction."""

Range = tuple[float, float]
"""A value of the paper, twice, or the range that its text gives."""

Key = tuple[str, str]
"""The series and the x of a number."""

Values = Mapping[Key, float | None]
"""Our values of a figure; None where one could not be computed."""

Verdict = Literal["holds", "misses", "fitted", "within reading", "outside reading", "no bar", "not run"]


@dataclass(frozen=True, slots=True)
class Number:
    """One number of a figure.

    Attributes:
        figure: its name.
        series: a bar, a curve or a row of it.
        x: where on it.
        paper: the paper's range, or its value twice; None where it gives none.
        certainty: a key of `CERTAINTIES`.
        ours: None where it could not be computed.
        bar: what was promised before it was computed, as `holds` reads it; ``fitted``; or "" for nothing.
    """

    figure: str
    series: str
    x: str
    paper: Range | None
    certainty: str
    ours: float | None
    bar: str = ""

    @property
    def error(self) -> float | None:
        """Our value less the paper's, in the figure's unit; 0 inside a range, else to its nearer end."""
        return None if self.paper is None or self.ours is None else distance(self.paper, self.ours)

    @property
    def relative(self) -> float | None:
        """The error as a share of the paper's value; None where that is 0 or there is none."""
        error = self.error
        if self.ours is None or error is None or self.ours == error:
            return None
        return error / (self.ours - error)

    @property
    def verdict(self) -> Verdict:
        """Whether what was promised holds; for what was read by eye, whether ours is as near as one reads."""
        if self.ours is None:
            return "not run"
        if self.paper is None:
            return "no bar"
        if self.bar == FITTED:
            return "fitted"
        if self.bar:
            return "holds" if holds(self.bar, self.paper, self.ours) else "misses"
        if self.certainty == "F":
            share = self.relative
            return "within reading" if share is not None and abs(share) <= READING else "outside reading"
        return "no bar"


def holds(bar: str, paper: Range, ours: float) -> bool:
    """Return whether our value keeps what a bar promised of it.

    Args:
        bar: ``exact``; ``inside`` (a range); ``± 1.5``; ``± 3 %``; or ``± 1 % of what rounds to it``, for a
            value that the paper prints as a whole number.
        paper: its range.
        ours: in the same unit.
    """
    size, _, unit = bar.removeprefix("± ").partition(" ")
    if bar in ("exact", "inside"):
        most, percent = 0.0, 0.0
    elif not unit:
        most, percent = float(size), 0.0
    else:
        most, percent = (0.0 if unit == "%" else 0.5), float(size)
    ends = paper[0] - most, paper[1] + most
    near = min(ends, key=lambda end: abs(end - ours))
    return abs(distance(ends, ours)) <= percent / 100 * abs(near)


def distance(paper: Range, ours: float) -> float:
    """Return our value less the paper's; 0 inside a range, else the signed distance to its nearer end."""
    low, high = paper
    return min(0.0, ours - low) + max(0.0, ours - high)


@cache
def published(figure: str) -> dict[Key, Number]:
    """Return the numbers that the paper gives of a figure, by series and x; pagesim's are filled in later."""
    rows = csv_reader.DictReader(
        Path(__file__).with_name("published.csv").read_text(encoding="utf-8").splitlines()
    )
    return {
        (row["series"], row["x"]): Number(
            figure, row["series"], row["x"], _quoted(row["paper"]), row["certainty"], None, row["bar"]
        )
        for row in rows
        if row["figure"] == figure
    }


def _quoted(text: str) -> Range:
    low, _, high = text.partition("..")
    return float(low), float(high or low)


def range_text(paper: Range | None, text: Callable[[float], str], between: str) -> str:
    """Return a value of the paper as a text, or both ends of a range; nothing where there is none."""
    return "" if paper is None else between.join(dict.fromkeys(map(text, paper)))


def shown(value: float | None) -> str:
    """Return a value for a CSV file: six digits or a whole number, or nothing."""
    if value is None or not math.isfinite(value):
        return ""
    return f"{value:.0f}" if value == int(value) else f"{value:.6g}"


def shown_range(paper: Range | None) -> str:
    """Return a value of the paper for a CSV file, a range with two dots."""
    return range_text(paper, shown, "..")


def csv(numbers: Sequence[Number]) -> str:
    """Return numbers as CSV: ``figure, series, x, paper, certainty, ours, error``."""
    import pandas as pd

    rows = [
        (n.figure, n.series, n.x, shown_range(n.paper), n.certainty, shown(n.ours), shown(n.error))
        for n in numbers
    ]
    columns = ["figure", "series", "x", "paper", "certainty", "ours", "error"]
    return pd.DataFrame(rows, columns=columns).to_csv(index=False)

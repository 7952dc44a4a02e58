"""The paper's numbers and ours: the paper's certainty, our error, and the tolerance promised."""

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
"""Relative error of a number that was read off a curve by eye."""

FITTED = "fitted"
"""Replaces the bar of a number to which the engine was fitted, so that it is not a prediction."""

Range = tuple[float, float]
"""The range that the paper's text gives, or a single value twice."""

Key = tuple[str, str]
"""Series and x of a number."""

Values = Mapping[Key, float | None]
"""Our values for a figure; None if one could not be computed."""

Verdict = Literal["holds", "misses", "fitted", "within reading", "outside reading", "no bar", "not run"]


@dataclass(frozen=True, slots=True)
class Number:
    """One number of a figure.

    Attributes:
        figure: the figure's name.
        series: a bar, curve or row of the figure.
        x: position within the series.
        paper: the paper's range, or its value twice; None if it gives none.
        certainty: a key of `CERTAINTIES`.
        ours: our value; None if it could not be computed.
        bar: tolerance promised before the run, in the form that `holds` reads; ``fitted``; or "" for none.
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
        """Our value minus the paper's, in the figure's unit; 0 inside a range, else from its nearer end."""
        return None if self.paper is None or self.ours is None else distance(self.paper, self.ours)

    @property
    def relative(self) -> float | None:
        """The error relative to the paper's value; None if that is 0 or missing."""
        error = self.error
        if self.ours is None or error is None or self.ours == error:
            return None
        return error / (self.ours - error)

    @property
    def verdict(self) -> Verdict:
        """Whether our value is within the bar or, if read by eye without one, within `READING`."""
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
    """Return whether our value is within a bar.

    Args:
        bar: ``exact``; ``inside`` (a range); ``± 1.5``; ``± 3 %``; or ``± 1 % of what rounds to it``, for a
            value that the paper prints as a whole number.
        paper: the paper's range.
        ours: our value, in the same unit.
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
    """Return our value minus the paper's; 0 inside a range, else the signed distance to its nearer end."""
    low, high = paper
    return min(0.0, ours - low) + max(0.0, ours - high)


@cache
def published(figure: str) -> dict[Key, Number]:
    """Return the paper's numbers for a figure, by series and x; ours are filled in later."""
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
    """Return a value of the paper as a string, or both ends of a range; "" if there is none."""
    return "" if paper is None else between.join(dict.fromkeys(map(text, paper)))


def shown(value: float | None) -> str:
    """Return a value for a CSV file: six digits, a whole number, or "" if there is none."""
    if value is None or not math.isfinite(value):
        return ""
    return f"{value:.0f}" if value == int(value) else f"{value:.6g}"


def shown_range(paper: Range | None) -> str:
    """Return a value of the paper for a CSV file, with ranges written with two dots."""
    return range_text(paper, shown, "..")


def csv(numbers: Sequence[Number]) -> str:
    """Return numbers as CSV with columns ``figure, series, x, paper, certainty, ours, error``."""
    import pandas as pd

    rows = [
        (n.figure, n.series, n.x, shown_range(n.paper), n.certainty, shown(n.ours), shown(n.error))
        for n in numbers
    ]
    columns = ["figure", "series", "x", "paper", "certainty", "ours", "error"]
    return pd.DataFrame(rows, columns=columns).to_csv(index=False)

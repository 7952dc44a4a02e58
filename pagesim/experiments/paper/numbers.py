"""A number of the paper beside ours: how sure the paper's is, how far ours is off, and what was promised."""

from __future__ import annotations

import csv as csv_reader
import math
from collections.abc import Mapping, Sequence
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

Quoted = float | tuple[float, float]
"""A value of the paper, or the range that its text gives."""

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
        paper: the paper's value or range; None where it gives none.
        certainty: a key of `CERTAINTIES`.
        ours: None where it could not be computed.
        bar: what was promised before it was computed, as `tolerance` reads it; ``fitted``; or "" for nothing.
    """

    figure: str
    series: str
    x: str
    paper: Quoted | None
    certainty: str
    ours: float | None
    bar: str = ""

    @property
    def error(self) -> float | None:
        """Our value less the paper's, in the figure's unit; 0 inside a range, else to its nearer end."""
        if self.paper is None or self.ours is None:
            return None
        return off(self.paper, self.ours)

    @property
    def relative(self) -> float | None:
        """The error as a share of the paper's value; None where that is 0 or there is none."""
        if self.error is None or self.ours is None or self.paper is None:
            return None
        near = self.ours - self.error if isinstance(self.paper, tuple) else self.paper
        return self.error / near if near else None

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


def tolerance(bar: str) -> tuple[float, float]:
    """Return how far a value may be off: in the figure's unit, and in percent beyond that.

    Args:
        bar: ``exact``; ``inside`` (a range); ``± 1.5``; ``± 3 %``; or ``± 1 % of what rounds to it``, for a
            value that the paper prints as a whole number.
    """
    if bar in ("exact", "inside"):
        return 0.0, 0.0
    size, _, unit = bar.removeprefix("± ").partition(" ")
    if not unit:
        return float(size), 0.0
    return (0.0 if unit == "%" else 0.5), float(size)


def holds(bar: str, paper: Quoted, ours: float) -> bool:
    """Say whether our value keeps what a bar promised of it."""
    most, percent = tolerance(bar)
    low, high = paper if isinstance(paper, tuple) else (paper, paper)
    ends = low - most, high + most
    near = min(ends, key=lambda end: abs(end - ours))
    return abs(off(ends, ours)) <= percent / 100 * abs(near)


def off(paper: Quoted, ours: float) -> float:
    """Return our value less the paper's; 0 inside a range, else the signed distance to its nearer end."""
    if not isinstance(paper, tuple):
        return ours - paper
    low, high = paper
    return min(0.0, ours - low) + max(0.0, ours - high)


@cache
def published(figure: str) -> dict[Key, Number]:
    """Return the numbers that the paper gives of a figure, by series and x, ours not yet known."""
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


def _quoted(text: str) -> Quoted:
    low, dots, high = text.partition("..")
    return (float(low), float(high)) if dots else float(text)


def shown(value: Quoted | None) -> str:
    """Return a value for a CSV file: six digits or a whole number, a range with two dots, or nothing."""
    if value is None:
        return ""
    if isinstance(value, tuple):
        return "..".join(shown(end) for end in value)
    if not math.isfinite(value):
        return ""
    return f"{value:.0f}" if value == int(value) else f"{value:.6g}"


def csv(numbers: Sequence[Number]) -> str:
    """Return numbers as CSV: ``figure, series, x, paper, certainty, ours, error``."""
    import pandas as pd

    rows = [
        (n.figure, n.series, n.x, shown(n.paper), n.certainty, shown(n.ours), shown(n.error)) for n in numbers
    ]
    columns = ["figure", "series", "x", "paper", "certainty", "ours", "error"]
    return pd.DataFrame(rows, columns=columns).to_csv(index=False)

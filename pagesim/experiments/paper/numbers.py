"""A number of the paper beside ours: how sure the paper's is, how far ours is off, and what was promised."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Certainty = Literal["V", "B", "A", "D", "F", ""]

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

Quoted = float | tuple[float, float]
"""A value of the paper, or the range that its text gives."""

Verdict = Literal["holds", "misses", "fitted", "within reading", "outside reading", "no bar", "not run"]


class Bar(Protocol):
    """What was promised of a number before it was computed. Its text is a clause for a table."""

    def holds(self, paper: Quoted, ours: float) -> bool:
        """Say whether our value keeps the promise."""


@dataclass(frozen=True, slots=True)
class Points:
    """Our value differs by no more than so much, in the figure's own unit."""

    most: float

    def holds(self, paper: Quoted, ours: float) -> bool:
        return abs(off(paper, ours)) <= self.most

    def __str__(self) -> str:
        return f"± {self.most:g}" if self.most else "exact"


@dataclass(frozen=True, slots=True)
class Percent:
    """Our value differs by no more than such a share of the paper's, in percent."""

    most: float

    def holds(self, paper: Quoted, ours: float) -> bool:
        near = paper if isinstance(paper, float | int) else min(paper, key=lambda end: abs(end - ours))
        return abs(off(paper, ours)) <= self.most / 100 * abs(near)

    def __str__(self) -> str:
        return f"± {self.most:g} %"


@dataclass(frozen=True, slots=True)
class Printed:
    """Our value lies within so many percent of some number that is printed as the paper's.

    Args:
        step: of the last printed digit.
        percent: beyond half a step.
    """

    step: float
    percent: float

    def holds(self, paper: Quoted, ours: float) -> bool:
        low, high = paper if isinstance(paper, tuple) else (paper, paper)
        return Percent(self.percent).holds((low - self.step / 2, high + self.step / 2), ours)

    def __str__(self) -> str:
        return f"± {self.percent:g} % of what rounds to it"


@dataclass(frozen=True, slots=True)
class Inside:
    """Our value lies in the paper's range."""

    def holds(self, paper: Quoted, ours: float) -> bool:
        return off(paper, ours) == 0

    def __str__(self) -> str:
        return "inside"


FITTED = "fitted"
"""In place of a bar: a number that the engine was fitted to, and so no prediction."""


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
        bar: what was promised; None for nothing.
    """

    figure: str
    series: str
    x: str
    paper: Quoted | None
    certainty: Certainty
    ours: float | None
    bar: Bar | str | None = None

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
        if self.bar is not None and not isinstance(self.bar, str):
            return "holds" if self.bar.holds(self.paper, self.ours) else "misses"
        if self.certainty == "F":
            share = self.relative
            return "within reading" if share is not None and abs(share) <= READING else "outside reading"
        return "no bar"


def off(paper: Quoted, ours: float) -> float:
    """Return our value less the paper's; 0 inside a range, else the signed distance to its nearer end."""
    if not isinstance(paper, tuple):
        return ours - paper
    low, high = paper
    return min(0.0, ours - low) + max(0.0, ours - high)


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

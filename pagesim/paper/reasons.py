"""Why numbers miss: what was found by an experiment, not guessed. The text says which experiment."""

from __future__ import annotations

from dataclasses import dataclass

from pagesim.paper.numbers import Number


@dataclass(frozen=True)
class Reason:
    """Why some numbers of a figure are off.

    Attributes:
        figure: its name.
        series: what their series begins with.
        x: what their x begins with.
        text: what was tried, and what came of it.
    """

    figure: str
    series: str
    x: str
    text: str


REASONS: tuple[Reason, ...] = ()

UNKNOWN = "not looked into."


def reason(number: Number) -> str:
    """Return why a number is off, as far as it is known."""
    for each in REASONS:
        if (
            number.figure == each.figure
            and number.series.startswith(each.series)
            and number.x.startswith(each.x)
        ):
            return each.text
    return UNKNOWN

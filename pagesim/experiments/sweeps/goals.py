"""Goal: a bound on a statistic of a latency, such as ``p99_ttft<=2s``."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagesim.accounting.metrics import PERCENTILES
from pagesim.errors import PagesimError, brief

LATENCIES = ("normalized_latency", "latency", "ttft", "tpot", "itl", "queueing")
"""Latencies a goal may bound: see ``docs/reference/metrics.md``; in seconds, the first in s/token."""

STATISTICS = ("mean", *(f"p{p}" for p in PERCENTILES))

SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3}

_FORM = re.compile(r"(?P<measure>[^<>=]+)<=(?P<number>[-+.\d]+(e[-+]?\d+)?)(?P<unit>[a-z]*)", re.IGNORECASE)


@dataclass(frozen=True)
class Goal:
    """An upper bound on a statistic of a latency.

    Attributes:
        text: the goal as it was given.
        statistic: one of ``STATISTICS``.
        latency: one of ``LATENCIES``.
        seconds: the bound, inclusive.
    """

    text: str
    statistic: str
    latency: str
    seconds: float

    @property
    def metric(self) -> str:
        """The metric's dotted name."""
        return f"{self.latency}.{self.statistic}"

    def value(self, summary: Mapping[str, Any]) -> float | None:
        """Return the bounded statistic from a run's summary, in seconds; None if it has none."""
        found: float | None = summary[self.latency][self.statistic]
        return found


def parse_goal(text: str) -> Goal:
    """Parse a goal, ``[STATISTIC_]LATENCY<=SECONDS``; the statistic is the mean by default.

    Raises:
        PagesimError: the goal is invalid; the message says why.
    """
    match = _FORM.fullmatch(text.replace(" ", ""))
    if match is None:
        raise PagesimError(f"goal is {brief(text)}; it must be a latency and its bound, such as p99_ttft<=2s")
    measure, number, unit = match["measure"], match["number"], match["unit"]
    statistic, _, latency = measure.partition("_")
    if statistic not in STATISTICS:
        if re.fullmatch(r"p\d+(\.\d+)?|min|max|median|std", statistic) and latency in LATENCIES:
            raise PagesimError(
                f"goal {brief(text)}: the statistic {statistic[:60]} is unknown; it must be one of "
                f"{', '.join(STATISTICS)}"
            )
        statistic, latency = "mean", measure
    if latency not in LATENCIES:
        close = difflib.get_close_matches(latency, LATENCIES, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise PagesimError(
            f"goal {brief(text)}: the latency {latency[:60]} is unknown; it must be one of "
            f"{', '.join(LATENCIES)}{hint}"
        )
    if unit not in SECONDS:
        raise PagesimError(f"goal {brief(text)}: the unit {unit[:60]} is unknown; it must be s or ms")
    try:
        seconds = float(number) * SECONDS[unit]
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise PagesimError(f"goal {brief(text)}: the bound {number[:60]} must be a number above 0")
    return Goal(text, statistic, latency, seconds)

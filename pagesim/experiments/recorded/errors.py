"""Errors of a simulated run relative to the recorded one, by metric and statistic, and over time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pagesim.accounting.metrics import PERCENTILES
from pagesim.experiments.recorded.recording import Floats, RecordedRun, Rows, Series
from pagesim.setup.system import System

STATISTICS = ("mean", *(f"p{percent}" for percent in PERCENTILES))
"""Statistics compared for each metric."""


class Residual(NamedTuple):
    """A statistic of a metric, as measured and as simulated.

    Attributes:
        measured, simulated: seconds.
    """

    measured: float
    simulated: float

    @property
    def error(self) -> float | None:
        """Simulated minus measured, divided by measured; None if 0 s were measured."""
        return self.simulated / self.measured - 1 if self.measured else None


class Pair(NamedTuple):
    """A metric of each request, as measured and as simulated, ``[N]`` each."""

    measured: Floats
    simulated: Floats


def pairs_of(run: RecordedRun, ttft: Floats, e2e: Floats, rows: Rows) -> dict[str, Pair]:
    """Return the requests' TTFT, TPOT and E2E; the measured ones are empty if only a summary is known.

    Args:
        run: the recorded run.
        ttft: simulated TTFT in seconds, ``[N]``.
        e2e: simulated E2E latency in seconds, ``[N]``.
        rows: requests to include, ``[N]``; those with one token have no TPOT.
    """
    output = run.output_tokens[rows]
    several = output > 1

    def latencies(ttft: Floats, e2e: Floats) -> tuple[Floats, Floats, Floats]:
        return ttft, (e2e - ttft)[several] / (output[several] - 1), e2e

    simulated = latencies(ttft[rows], e2e[rows])
    nothing = (np.empty(0),) * 3
    measured = nothing if run.known else latencies(run.ttft_s[rows], run.e2e_s[rows])
    return dict(zip(("ttft", "tpot", "e2e"), map(Pair, measured, simulated), strict=True))


def residuals_of(
    measured: Mapping[str, Mapping[str, float | None]], simulated: Mapping[str, Mapping[str, float | None]]
) -> dict[str, dict[str, Residual]]:
    """Return measured and simulated values by metric and statistic, where both are known."""
    found = {
        metric: {
            name: Residual(ours, theirs)
            for name in STATISTICS
            if (ours := by.get(name)) is not None and (theirs := simulated[metric].get(name)) is not None
        }
        for metric, by in measured.items()
        if metric in simulated
    }
    return {metric: by for metric, by in found.items() if by}


def as_json(residuals: Mapping[str, Mapping[str, Residual]]) -> dict[str, Any]:
    """Return residuals in seconds as JSON; an error is None if 0 s were measured."""
    return {
        metric: {
            name: {"measured_s": miss.measured, "simulated_s": miss.simulated, "error": miss.error}
            for name, miss in by.items()
        }
        for metric, by in residuals.items()
    }


class OverTime(NamedTuple):
    """A server's state over time, measured and simulated at the same instants."""

    measured: Series
    simulated: Series

    def means(self) -> dict[str, dict[str, float]]:
        """Return means over time, measured and simulated: numbers of requests and shares of KV blocks."""
        return {
            name: {
                "measured": float(getattr(self.measured, name).mean()),
                "simulated": float(getattr(self.simulated, name).mean()),
                "absolute": float(
                    np.abs(getattr(self.simulated, name) - getattr(self.measured, name)).mean()
                ),
            }
            for name in ("running", "waiting", "kv_use")
        }


@dataclass(frozen=True)
class RecordedComparison:
    """The comparison of a recorded run with its simulation.

    Attributes:
        name: name of the run.
        system: the simulated system.
        requests: number of requests.
        pairs: seconds of each request, by metric.
        residuals: seconds by metric and statistic.
        curve: state over time; None if it was not recorded.
        preemptions: number of preemptions in the simulation.
        recorded_preemptions: the server's number of preemptions; None if not recorded.
        notes: things that a reader should know.
    """

    name: str
    system: System
    requests: int
    pairs: Mapping[str, Pair]
    residuals: Mapping[str, Mapping[str, Residual]]
    curve: OverTime | None
    preemptions: int
    recorded_preemptions: int | None
    notes: tuple[str, ...] = ()

    def worst(self) -> float:
        """Return the largest absolute error of any mean."""
        errors = [by["mean"].error for by in self.residuals.values() if "mean" in by]
        return max((abs(error) for error in errors if error is not None), default=0.0)

    def report(self) -> dict[str, Any]:
        """Return everything except single requests, as JSON; times are in seconds."""
        return {
            "run": self.name,
            "requests": self.requests,
            "system": self.system.model_dump(exclude_unset=True),
            "errors": as_json(self.residuals),
            "over_time": None if self.curve is None else self.curve.means(),
            "preemptions": {"measured": self.recorded_preemptions, "simulated": self.preemptions},
            "notes": list(self.notes),
        }

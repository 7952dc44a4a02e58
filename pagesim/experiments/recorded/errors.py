"""Errors: how far a simulated run is from the recorded one, by metric and statistic, and over time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pagesim.accounting.metrics import PERCENTILES
from pagesim.experiments.recorded.recording import Floats, RecordedRun, Rows, Series
from pagesim.setup.system import System

STATISTICS = ("mean", *(f"p{percent}" for percent in PERCENTILES))
"""What is compared of each metric."""


class Residual(NamedTuple):
    """A statistic of a metric, measured and simulated.

    Attributes:
        measured, simulated: seconds.
    """

    measured: float
    simulated: float

    @property
    def error(self) -> float | None:
        """Simulated less measured, over measured; None where nothing but 0 s was measured."""
        return self.simulated / self.measured - 1 if self.measured else None


class Pair(NamedTuple):
    """A metric of each request, measured and simulated, ``[N]`` each."""

    measured: Floats
    simulated: Floats


def pairs_of(run: RecordedRun, ttft: Floats, e2e: Floats, rows: Rows) -> dict[str, Pair]:
    """Return TTFT, TPOT and E2E of requests; nothing is measured of a run that is known by a summary.

    Args:
        run: as measured.
        ttft: seconds as simulated, ``[N]``.
        e2e: seconds as simulated, ``[N]``.
        rows: requests that are looked at, ``[N]``; of one token there is no TPOT.
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
    """Return by metric and statistic what was measured and what was simulated, as far as both are known."""
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
    """Return residuals as JSON takes them, in seconds; an error is None where nothing was measured."""
    return {
        metric: {
            name: {"measured_s": miss.measured, "simulated_s": miss.simulated, "error": miss.error}
            for name, miss in by.items()
        }
        for metric, by in residuals.items()
    }


class OverTime(NamedTuple):
    """What a server said over time, measured and simulated at the same instants."""

    measured: Series
    simulated: Series

    def means(self) -> dict[str, dict[str, float]]:
        """Return means over time, measured and simulated: requests, and shares of the KV blocks."""
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
    """A recorded run beside its simulation.

    Attributes:
        name: of the run.
        system: what was simulated.
        requests: how many.
        pairs: by metric, seconds of each request.
        residuals: by metric and statistic, seconds.
        curve: over time; None where nothing was recorded.
        preemptions: of the simulation.
        recorded_preemptions: of the server; None where they were not recorded.
        notes: what to know.
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
        """Return the largest error of a mean, without its sign."""
        errors = [by["mean"].error for by in self.residuals.values() if "mean" in by]
        return max((abs(error) for error in errors if error is not None), default=0.0)

    def report(self) -> dict[str, Any]:
        """Return everything but single requests, ready for JSON; times are in seconds."""
        return {
            "run": self.name,
            "requests": self.requests,
            "system": self.system.model_dump(exclude_unset=True),
            "errors": as_json(self.residuals),
            "over_time": None if self.curve is None else self.curve.means(),
            "preemptions": {"measured": self.recorded_preemptions, "simulated": self.preemptions},
            "notes": list(self.notes),
        }

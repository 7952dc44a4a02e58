"""Errors: how far a simulated run is from the recorded one, by metric and statistic, and over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pagesim.experiments.recorded.recording import Floats, RecordedRun, Rows, Series
from pagesim.setup.system import System

STATISTICS: dict[str, Callable[[Floats], float]] = {
    "mean": lambda seconds: float(seconds.mean()),
    "p50": lambda seconds: float(np.percentile(seconds, 50)),
    "p90": lambda seconds: float(np.percentile(seconds, 90)),
    "p95": lambda seconds: float(np.percentile(seconds, 95)),
    "p99": lambda seconds: float(np.percentile(seconds, 99)),
}


def statistics_of(seconds: Floats) -> dict[str, float]:
    """Return every statistic of seconds, ``[N]``, N at least 1."""
    return {name: statistic(seconds) for name, statistic in STATISTICS.items()}


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
    """Return TTFT, TPOT and E2E of requests, measured and simulated; measured is empty where means are known.

    Args:
        run: as measured.
        ttft: seconds as simulated, ``[N]``.
        e2e: seconds as simulated, ``[N]``.
        rows: requests that are looked at, ``[N]``; of one token there is no TPOT.
    """
    several, gaps = rows & (run.output_tokens > 1), np.maximum(1, run.output_tokens - 1)

    def pair(measured: Floats, simulated: Floats, of: Rows) -> Pair:
        return Pair(measured[of] if len(measured) else measured, simulated[of])

    return {
        "ttft": pair(run.ttft_s, ttft, rows),
        "tpot": pair(
            (run.e2e_s - run.ttft_s) / gaps if len(run.ttft_s) else run.ttft_s, (e2e - ttft) / gaps, several
        ),
        "e2e": pair(run.e2e_s, e2e, rows),
    }


def apart(measured: Mapping[str, float], simulated: Mapping[str, float]) -> dict[str, Residual]:
    """Return the statistics of a metric that both have, measured and simulated, by name."""
    return {
        name: Residual(measured[name], simulated[name])
        for name in STATISTICS
        if name in measured and name in simulated
    }


def residuals_of(pairs: Mapping[str, Pair]) -> dict[str, dict[str, Residual]]:
    """Return by metric and statistic what was measured and what was simulated."""
    return {
        metric: apart(statistics_of(both.measured), statistics_of(both.simulated))
        for metric, both in pairs.items()
        if len(both.measured)
    }


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

"""Errors: how far a simulated load is from the measured one, by metric."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pagesim.errors import PagesimError
from pagesim.experiments.fit.iterations import Simulated
from pagesim.experiments.fit.loads import Floats, Load, Rows

STATISTICS: dict[str, Callable[[Floats], float]] = {
    "mean": lambda seconds: float(seconds.mean()),
    "p50": lambda seconds: float(np.percentile(seconds, 50)),
    "p95": lambda seconds: float(np.percentile(seconds, 95)),
}


class Miss(NamedTuple):
    """A statistic of a metric, measured and simulated.

    Attributes:
        measured, simulated: seconds.
    """

    measured: float
    simulated: float

    @property
    def error(self) -> float:
        """Simulated less measured, over measured."""
        return self.simulated / self.measured - 1 if self.measured else 0.0


class Pairs(NamedTuple):
    """A metric of each request, measured and simulated, ``[N]``."""

    measured: Floats
    simulated: Floats


def pairs(load: Load, run: Simulated, front_end_s: float, rows: Rows | None = None) -> dict[str, Pairs]:
    """Return TTFT, TPOT and E2E of each request that was answered, measured and simulated.

    Args:
        load: as measured.
        run: as simulated.
        front_end_s: what a TTFT has beside the engine's time; the simulation knows of no front end.
        rows: requests that are looked at, ``[N]``; all when left out.

    Raises:
        PagesimError: no request was answered in the simulation.
    """
    chosen = run.answered if rows is None else run.answered & rows
    if not chosen.any():
        raise PagesimError(
            f"{load.name}: none of its requests was answered in the simulation; look at the server's "
            "settings (num_blocks, max_model_len)"
        )
    ttft, decode, e2e = run.seconds()
    several = chosen & (load.output_tokens > 1)
    gaps = np.maximum(1, load.output_tokens - 1)
    measured = (load.ttft_s, (load.last_s - load.first_s) / gaps, load.e2e_s)
    simulated = (ttft + front_end_s, decode / gaps, e2e + front_end_s)
    found = {
        name: Pairs(ours[of], theirs[of])
        for name, of, ours, theirs in zip(
            ("ttft", "tpot", "e2e"), (chosen, several, chosen), measured, simulated, strict=True
        )
    }
    return {name: both for name, both in found.items() if len(both.measured)}


def misses(of: dict[str, Pairs]) -> dict[str, dict[str, Miss]]:
    """Return by metric and statistic what was measured and what was simulated."""
    return {
        metric: {
            name: Miss(statistic(both.measured), statistic(both.simulated))
            for name, statistic in STATISTICS.items()
        }
        for metric, both in of.items()
    }

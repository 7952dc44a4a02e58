"""Runs of which only a summary is known: their load is redrawn, and the known statistics are compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pagesim.errors import PagesimError, brief
from pagesim.experiments.recorded.layout import Count, FileLayout, at, is_number
from pagesim.experiments.recorded.recording import Ints
from pagesim.sim.clock import LONGEST_S

STATISTICS = {
    "mean": ("mean", "avg"),
    "p50": ("median", "p50"),
    "p90": ("p90",),
    "p95": ("p95",),
    "p99": ("p99",),
}
"""Statistics and their names in files."""


class BenchLoad(FileLayout):
    """The load of a run."""

    clients: Count | None = at(
        *("max_concurrency", "input_config.phases.-1.concurrency", "input_config.loadgen.concurrency"),
        default=None,
    )
    rate: Any = at(
        *("request_rate", "input_config.phases.-1.rate", "input_config.loadgen.request_rate"), default=None
    )

    def a_second(self, name: str) -> float | None:
        """Return the requests per second; None if all were due at once.

        Raises:
            PagesimError: they were due at times that the file ``name`` does not contain.
        """
        if self.rate in ("inf", None):
            return None
        if not is_number(self.rate, 1e6, 1e-6):
            raise PagesimError(
                f"{name}: request_rate is {brief(self.rate)}, and when requests were sent is not known; keep "
                "the times of single requests (--save-detailed, SGLang: --output-details)"
            )
        return float(self.rate)


def scaled(lengths: npt.ArrayLike, mean: float) -> Ints:
    """Return lengths scaled to a mean, in whole tokens of at least 1, ``[N]``, rounding cumulative sums."""
    drawn = np.asarray(lengths, np.float64)
    ends = np.rint(np.cumsum(drawn * (mean / drawn.mean())))
    found: Ints = np.maximum(1, np.diff(ends, prepend=0)).astype(np.int64)
    return found


def statistics(name: str, found: Mapping[str, Any], scale: float, field: str = "{}") -> dict[str, float]:
    """Return the known statistics of a metric, in seconds.

    Args:
        name: name of the file and the metric.
        found: numbers by field; None for unknown ones.
        scale: seconds per unit.
        field: format of a statistic's field name.

    Raises:
        PagesimError: a value is not a number.
    """
    known = {}
    for statistic, theirs in STATISTICS.items():
        for each in map(field.format, theirs):
            if (value := found.get(each)) is None:
                continue
            if not is_number(value, LONGEST_S / scale):
                raise PagesimError(f"{name}: {each} is {brief(value)}; a number from 0 is needed")
            known[statistic] = scale * value
    return known

"""Runs that are known by a summary: the load is drawn again, and its statistics are what is compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pagesim.errors import PagesimError, brief
from pagesim.experiments.recorded.layout import is_number
from pagesim.experiments.recorded.recording import Ints, RecordedRun
from pagesim.sim.clock import LONGEST_S

STATISTICS = {
    "mean": ("mean", "avg"),
    "p50": ("p50", "median"),
    "p90": ("p90",),
    "p95": ("p95",),
    "p99": ("p99",),
}
"""How files call statistics."""


def scaled(lengths: npt.ArrayLike, mean: float) -> Ints:
    """Return lengths, ``[N]``, stretched to a mean, in whole tokens, at least 1 each; ends are summed up."""
    drawn = np.asarray(lengths, np.float64)
    ends = np.rint(np.cumsum(drawn * (mean / drawn.mean())))
    found: Ints = np.maximum(1, np.diff(ends, prepend=0)).astype(np.int64)
    return found


def statistics(where: str, found: Mapping[str, Any], scale: float, name: str = "{}") -> dict[str, float]:
    """Return those statistics of a metric that are there, in seconds.

    Args:
        where: file, for the sentence.
        found: numbers by field; None where one is not known.
        scale: seconds of a unit.
        name: of a field, by the statistic's.

    Raises:
        PagesimError: one is no number.
    """
    known = {}
    for statistic, theirs in STATISTICS.items():
        for field in map(name.format, theirs):
            if (value := found.get(field)) is None:
                continue
            if not is_number(value, LONGEST_S / scale):
                raise PagesimError(f"{where}: {field} is {brief(value)}; a number from 0 is needed")
            known[statistic] = scale * value
    return known


def summarized(
    name: str,
    known: Mapping[str, Mapping[str, float]],
    prompt: Ints,
    output: Ints,
    *,
    clients: float | None,
    rate: float | None = None,
    burstiness: float = 1.0,
    server: Mapping[str, Any],
    notes: tuple[str, ...] = (),
) -> RecordedRun:
    """Return the run of a load that is known by its lengths, its clients and its rate.

    Args:
        name: of the run.
        known: by metric and statistic, seconds; a metric without any is left out.
        prompt: tokens of each request's prompt, ``[N]``.
        output: tokens of each answer, ``[N]``.
        clients: requests that were outstanding at most; None without a bound.
        rate: requests a second, gaps drawn from a gamma distribution; None where all were due at once.
        burstiness: shape of that distribution; 1 is Poisson's.
        server: options of a system.
        notes: what was noticed on reading.

    Raises:
        PagesimError: the summary has no latency.
    """
    known = {metric: by for metric, by in known.items() if by}
    if not known.keys() & {"ttft", "tpot", "itl", "e2e"}:
        raise PagesimError(f"{name}: says nothing of latencies; run the benchmark with streaming")
    size = len(prompt)
    due = np.zeros(size)
    if rate is not None:
        due = np.cumsum(np.random.default_rng(0).gamma(burstiness, size=size))
        due = (due - due[0]) * ((size - 1) / rate / max(due[-1] - due[0], 1e-9))
    nothing = np.empty(0)
    most = None if clients is None or clients >= size else int(clients)
    return RecordedRun(
        name, due, prompt, output, nothing, nothing,
        max_concurrency=most, known=known, server=server, notes=notes,
    )  # fmt: skip

"""Terminal output of simulations of recorded runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from pagesim.cli import show
from pagesim.cli.printing import put_table
from pagesim.experiments.recorded.errors import STATISTICS, RecordedComparison, Residual

OVER_TIME = {"running": "running, requests", "waiting": "waiting, requests", "kv_use": "KV use, %"}

MOST = 12
"""Runs whose preemptions are printed one by one; of more their sum is."""


def absolute(found: Sequence[RecordedComparison]) -> dict[str, float]:
    """Return the mean absolute error of each metric's mean over all runs."""
    metrics = dict.fromkeys(metric for each in found for metric in each.residuals)
    errors = {
        metric: [
            abs(error)
            for each in found
            if "mean" in (by := each.residuals.get(metric, {})) and (error := by["mean"].error) is not None
        ]
        for metric in metrics
    }
    return {metric: float(np.mean(each)) for metric, each in errors.items() if each}


def errors(title: str, found: Iterable[tuple[str, Mapping[str, Mapping[str, Residual]]]]) -> None:
    """Print measured and simulated values with the error of each statistic, one row per metric.

    Args:
        title: title of the table.
        found: errors by run name, metric and statistic.
    """
    put_table(
        title,
        ("", "metric", "measured, mean", "simulated", *(f"error, {name}" for name in STATISTICS)),
        [
            (
                name,
                metric.replace("_", " ").upper(),
                _seconds(by.get("mean")),
                _seconds(by.get("mean"), 1),
                *(_percent(by.get(statistic)) for statistic in STATISTICS),
            )
            for name, metrics in found
            for metric, by in metrics.items()
        ],
        texts=(0, 1),
    )


def tables(found: Sequence[RecordedComparison], left_out: Mapping[str, str]) -> None:
    """Print latency errors, time series, and the runs that were left out."""
    names = [each.name if len(found) > 1 else "" for each in found]
    errors(
        "Simulated against recorded: latencies",
        zip(names, (each.residuals for each in found), strict=True),
    )
    curves = [
        (name, OVER_TIME[what], *(f"{(100 if what == 'kv_use' else 1) * means[way]:,.1f}" for way in means))
        for name, each in zip(names, found, strict=True)
        if each.curve is not None
        for what, means in each.curve.means().items()
    ]
    if curves:
        titles = ("", "", "measured, mean", "simulated", "apart at an instant, mean")
        put_table("Over time", titles, curves, texts=(0, 1))
    if len(found) > MOST:
        counts = [each.preemptions for each in found if each.preemptions]
        show.say(f"preemptions: {sum(counts):,} simulated, in {len(counts)} runs")
    for name, each in zip(names, found, strict=True) if len(found) <= MOST else ():
        of = each.recorded_preemptions
        recorded = "not recorded" if of is None else f"{of:,} recorded"
        if of is not None or each.preemptions:
            show.say(f"{name}{': ' if name else ''}preemptions: {each.preemptions:,} simulated, {recorded}")
    if len(found) > 1:
        means = ", ".join(
            f"{metric.upper()} {100 * value:.1f} %" for metric, value in absolute(found).items()
        )
        show.say(f"mean absolute error over {len(found)} runs: {means}")
    for reason, size in _reasons(left_out).items():
        show.say(f"{size} left out: {reason}")


def _reasons(left_out: Mapping[str, str]) -> dict[str, int]:
    """Return the reasons why runs were left out, with the number of runs for each."""
    counted: dict[str, int] = {}
    for name, sentence in left_out.items():
        reason = sentence.removeprefix(f"{name}: ")
        counted[reason] = counted.get(reason, 0) + 1
    return counted


def _percent(miss: Residual | None) -> str:
    return "–" if miss is None or miss.error is None else f"{100 * miss.error:+.1f} %"


def _seconds(miss: Residual | None, way: int = 0) -> str:
    if miss is None:
        return "–"
    seconds = miss[way]
    return f"{seconds:,.4g} s" if seconds >= 1 else f"{1e3 * seconds:,.4g} ms"

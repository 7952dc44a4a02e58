"""Plots of recorded runs and their simulations (matplotlib)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pagesim.experiments.recorded.errors import RecordedComparison
from pagesim.results.style import LINES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WORDS = {"ttft": "TTFT, s", "tpot": "TPOT, s", "e2e": "E2E, s"}
OVER_TIME = {"running": "running", "waiting": "waiting", "kv_use": "KV use"}
MEASURED, SIMULATED = LINES["measured"].colour, LINES["simulated"].colour
MOST_ROWS = 12
"""Maximum number of runs drawn with one row of panels each; more are drawn as points only."""


def measured_against_simulated(found: Sequence[RecordedComparison]) -> Figure:
    """Draw measured and simulated latencies.

    Up to ``MOST_ROWS`` runs with known requests get one row each: the latencies' cumulative distributions
    and, if recorded, the state over time. Otherwise each run's means are points, simulated over measured.

    Args:
        found: comparisons, at least one.
    """
    from pagesim.results.drawing import empty, head, load_of

    servers = list(dict.fromkeys(load_of(each.system) for each in found))
    load = servers[0] if len(servers) == 1 else f"{len(found)} runs on {len(servers)} servers"
    single = [each for each in found if any(len(pair.measured) for pair in each.pairs.values())]
    if not single or len(single) > MOST_ROWS:
        return _points(found, load)
    columns = len(WORDS) + (len(OVER_TIME) if any(each.curve for each in single) else 0)
    figure = empty(2.5 * columns, 2.6 * len(single) + 0.3)
    for row, each in zip(figure.subplots(len(single), columns, squeeze=False), single, strict=True):
        row[0].set_title(each.name, fontsize=8, loc="left")
        row[0].set_ylabel("share of requests", fontsize=8)
        for axes, (metric, words) in zip(row, WORDS.items(), strict=False):
            axes.set_xlabel(words, fontsize=8)
            axes.tick_params(labelsize=7)
            for seconds, color in zip(each.pairs[metric], (MEASURED, SIMULATED), strict=True):
                if len(seconds):
                    axes.plot(np.sort(seconds), (np.arange(len(seconds)) + 1) / len(seconds), color=color)
        row[0].legend(["measured", "simulated"], fontsize=7, frameon=False)
        for axes, (what, words) in zip(row[len(WORDS) :], OVER_TIME.items(), strict=False):
            if each.curve is None:
                axes.set_axis_off()
                continue
            axes.set_title(words, fontsize=8)
            axes.set_xlabel("s", fontsize=8)
            axes.tick_params(labelsize=7)
            for series, color in zip(each.curve, (MEASURED, SIMULATED), strict=True):
                axes.plot(series.t, getattr(series, what), color=color, linewidth=1)
    return head(figure, "Recorded runs beside their simulations", load)


def _points(found: Sequence[RecordedComparison], load: str) -> Figure:
    """Draw each run's means, simulated over measured, with one panel per metric."""
    from pagesim.results.drawing import against, head, panels

    metrics = list(dict.fromkeys(metric for each in found for metric in each.residuals))
    figure, all_axes = panels(1, len(metrics), 3.6, 3.7)
    for axes, metric in zip(all_axes, metrics, strict=True):
        means = [by["mean"] for each in found if "mean" in (by := each.residuals.get(metric, {}))]
        measured, simulated = np.array(means).reshape(-1, 2).T
        axes.plot(measured, simulated, ".", color=SIMULATED)
        against(axes, measured, simulated)
        axes.set_title(WORDS.get(metric, metric))
    return head(figure, "Means of recorded runs, as simulated and as measured", load)

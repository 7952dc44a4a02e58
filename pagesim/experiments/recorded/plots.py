"""Plots: recorded runs beside their simulations (matplotlib)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pagesim.experiments.recorded.errors import Comparison
from pagesim.results.style import BLUE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WORDS = {"ttft": "TTFT, s", "tpot": "TPOT, s", "e2e": "E2E, s"}
OVER_TIME = {"running": "running", "waiting": "waiting", "kv_use": "KV use"}
MEASURED, SIMULATED = "#555555", BLUE
MOST_ROWS = 12
"""Runs with a row of panels each; more are drawn as points alone."""


def measured_against_simulated(found: Sequence[Comparison]) -> Figure:
    """Draw what was measured and what was simulated.

    One to ``MOST_ROWS`` runs whose requests are known have a row each: shares of requests by latency and,
    where it was recorded, what was over time. Of others each run's means are points, simulated over measured.

    Args:
        found: runs, at least one.
    """
    from pagesim.results.drawing import empty, head

    single = [each for each in found if any(len(pair.measured) for pair in each.pairs.values())]
    if not single or len(single) > MOST_ROWS:
        return _points(found)
    figure = empty(15, 2.6 * len(single) + 0.3)
    panels = figure.subplots(len(single), len(WORDS) + len(OVER_TIME), squeeze=False)
    for row, each in zip(panels, single, strict=True):
        for axes, (metric, words) in zip(row, WORDS.items(), strict=False):
            axes.set_xlabel(words, fontsize=8)
            axes.tick_params(labelsize=7)
            for seconds, color in zip(each.pairs[metric], (MEASURED, SIMULATED), strict=True):
                if len(seconds):
                    axes.plot(np.sort(seconds), (np.arange(len(seconds)) + 1) / len(seconds), color=color)
        row[0].set_ylabel("share of requests", fontsize=8)
        row[0].legend(["measured", "simulated"], fontsize=7, frameon=False)
        for axes, (name, words) in zip(row[len(WORDS) :], OVER_TIME.items(), strict=True):
            if each.curve is None:
                axes.set_axis_off()
                continue
            axes.set_title(words, fontsize=8)
            axes.set_xlabel("s", fontsize=8)
            axes.tick_params(labelsize=7)
            for series, color in zip(each.curve, (MEASURED, SIMULATED), strict=True):
                axes.plot(series.t, getattr(series, name), color=color, linewidth=1)
    return head(figure, "Recorded runs beside their simulations")


def _points(found: Sequence[Comparison]) -> Figure:
    """Draw each run's means, simulated over measured, a panel a metric."""
    from pagesim.results.drawing import empty, equality, head

    metrics = list(dict.fromkeys(metric for each in found for metric in each.misses))
    figure = empty(3.6 * len(metrics), 3.7)
    for axes, metric in zip(figure.subplots(1, len(metrics), squeeze=False)[0], metrics, strict=True):
        means = [each.misses[metric]["mean"] for each in found if metric in each.misses]
        ends = [1e-4, 1.5 * max(max(mean.measured, mean.simulated) for mean in means)]
        ends[0] = 0.7 * min(min(mean.measured, mean.simulated) for mean in means) or ends[0]
        equality(axes, ends)
        axes.plot([mean.measured for mean in means], [mean.simulated for mean in means], ".", color=SIMULATED)
        axes.set(
            xscale="log", yscale="log", title=WORDS.get(metric, metric), xlabel="measured", ylabel="simulated"
        )
    return head(figure, "Means of recorded runs, as simulated and as measured")

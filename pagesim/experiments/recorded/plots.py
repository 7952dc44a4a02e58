"""Plots: recorded runs beside their simulations (matplotlib)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pagesim.experiments.recorded.errors import OverTime, Pair, RecordedComparison
from pagesim.results.style import LINES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WORDS = {"ttft": "TTFT, s", "tpot": "TPOT, s", "e2e": "E2E, s"}
OVER_TIME = {"running": "running", "waiting": "waiting", "kv_use": "KV use"}
MEASURED, SIMULATED = LINES["measured"].colour, LINES["simulated"].colour
MOST_ROWS = 12
"""Runs with a row of panels each; more are drawn as points alone."""


def measured_against_simulated(found: Sequence[RecordedComparison]) -> Figure:
    """Draw what was measured and what was simulated.

    One to ``MOST_ROWS`` runs whose requests are known have a row each: shares of requests by latency and,
    where it was recorded, what was over time. Of others each run's means are points, simulated over measured.

    Args:
        found: runs, at least one.
    """
    from pagesim.results.drawing import load_of

    servers = list(dict.fromkeys(load_of(each.system) for each in found))
    load = servers[0] if len(servers) == 1 else f"{len(found)} runs on {len(servers)} servers"
    single = [each for each in found if any(len(pair.measured) for pair in each.pairs.values())]
    if not single or len(single) > MOST_ROWS:
        return _points(found, load)
    return latencies(
        {each.name: each.pairs for each in single},
        {each.name: each.curve for each in single if each.curve is not None},
        load,
    )


def latencies(
    found: Mapping[str, Mapping[str, Pair]], over_time: Mapping[str, OverTime], load: str = ""
) -> Figure:
    """Draw shares of requests by latency, a row a run, and what was over time where it was recorded.

    Args:
        found: by run and metric, seconds of each request.
        over_time: by run.
        load: the server, for the line below the title.
    """
    from pagesim.results.drawing import empty, head

    columns = len(WORDS) + (len(OVER_TIME) if over_time else 0)
    figure = empty(2.5 * columns, 2.6 * len(found) + 0.3)
    panels = figure.subplots(len(found), columns, squeeze=False)
    for row, (name, pairs) in zip(panels, found.items(), strict=True):
        row[0].set_title(name, fontsize=8, loc="left")
        for axes, (metric, words) in zip(row, WORDS.items(), strict=False):
            axes.set_xlabel(words, fontsize=8)
            axes.tick_params(labelsize=7)
            for seconds, color in zip(pairs.get(metric, ()), (MEASURED, SIMULATED), strict=False):
                if len(seconds):
                    axes.plot(np.sort(seconds), (np.arange(len(seconds)) + 1) / len(seconds), color=color)
        row[0].set_ylabel("share of requests", fontsize=8)
        row[0].legend(["measured", "simulated"], fontsize=7, frameon=False)
        for axes, (what, words) in zip(row[len(WORDS) :], OVER_TIME.items(), strict=False):
            if name not in over_time:
                axes.set_axis_off()
                continue
            axes.set_title(words, fontsize=8)
            axes.set_xlabel("s", fontsize=8)
            axes.tick_params(labelsize=7)
            for series, color in zip(over_time[name], (MEASURED, SIMULATED), strict=True):
                axes.plot(series.t, getattr(series, what), color=color, linewidth=1)
    return head(figure, "Recorded runs beside their simulations", load)


def _points(found: Sequence[RecordedComparison], load: str) -> Figure:
    """Draw each run's means, simulated over measured, a panel a metric."""
    from pagesim.results.drawing import empty, equality, head

    metrics = list(dict.fromkeys(metric for each in found for metric in each.residuals))
    figure = empty(3.6 * len(metrics), 3.7)
    for axes, metric in zip(figure.subplots(1, len(metrics), squeeze=False)[0], metrics, strict=True):
        means = [each.residuals[metric]["mean"] for each in found if metric in each.residuals]
        ends = [1e-4, 1.5 * max(max(mean.measured, mean.simulated) for mean in means)]
        ends[0] = 0.7 * min(min(mean.measured, mean.simulated) for mean in means) or ends[0]
        equality(axes, ends)
        axes.plot([mean.measured for mean in means], [mean.simulated for mean in means], ".", color=SIMULATED)
        axes.set(
            xscale="log", yscale="log", title=WORDS.get(metric, metric), xlabel="measured", ylabel="simulated"
        )
    return head(figure, "Means of recorded runs, as simulated and as measured", load)

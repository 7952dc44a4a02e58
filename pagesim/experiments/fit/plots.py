"""Plots: each request's latencies, measured and simulated, load beside load (matplotlib)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pagesim.experiments.fit.errors import Pairs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WORDS = {"ttft": "TTFT, s", "tpot": "TPOT, ms", "e2e": "E2E, s"}


def measured_against_simulated(of: dict[str, dict[str, Pairs]]) -> Figure:
    """Draw each request's TTFT, TPOT and E2E as simulated over those measured, a row a load.

    Args:
        of: by load, by metric, seconds of each request.
    """
    from pagesim.results.drawing import empty, equality, head
    from pagesim.results.style import BLUE

    figure = empty(3.2 * len(WORDS), 3.0 * len(of) + 0.3)
    panels = figure.subplots(len(of), len(WORDS), squeeze=False)
    for row, (load, metrics) in zip(panels, of.items(), strict=True):
        for axes, (metric, label) in zip(row, WORDS.items(), strict=True):
            axes.set_title(f"{load}: {label}", fontsize=8)
            axes.set_xlabel("measured", fontsize=8)
            axes.set_ylabel("simulated", fontsize=8)
            axes.tick_params(labelsize=7)
            if metric not in metrics:
                continue
            scale = 1e3 if metric == "tpot" else 1.0
            measured, simulated = (scale * each for each in metrics[metric])
            ends = np.array([0.0, 1.05 * max(measured.max(), simulated.max())])
            equality(axes, ends, band=True)
            axes.plot(measured, simulated, ".", color=BLUE, markersize=3)
            axes.set_xlim(*ends)
            axes.set_ylim(*ends)
    return head(figure, "Each request, as simulated and as measured")

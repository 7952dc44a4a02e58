"""Plots: each request's latencies, measured and simulated, load beside load (matplotlib)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pagesim.experiments.fit.errors import Pairs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WORDS = {"ttft": "TTFT, s", "tpot": "TPOT, ms", "e2e": "E2E, s"}
SHARE = 0.1
"""Of the measured value: the grey band around equality."""


def measured_against_simulated(of: dict[str, dict[str, Pairs]]) -> Figure:
    """Draw each request's TTFT, TPOT and E2E as simulated over those measured, a row a load.

    Args:
        of: by load, by metric, seconds of each request.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.2 * len(WORDS), 3.0 * len(of)), layout="constrained")
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
            axes.fill_between(
                ends, (1 - SHARE) * ends, (1 + SHARE) * ends, color="black", alpha=0.08, linewidth=0
            )
            axes.plot(ends, ends, color="black", linewidth=0.6)
            axes.plot(measured, simulated, ".", color="#0072B2", markersize=3)
            axes.set_xlim(*ends)
            axes.set_ylim(*ends)
    return figure

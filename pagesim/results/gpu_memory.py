"""The figure of where a GPU's memory goes."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pagesim.results.plots import COLOURS, LINE_COLOURS


def gpu_memory_bar(parts: Mapping[str, float], title: str) -> Figure:
    """Draw the parts of a GPU's memory as one bar.

    Args:
        parts: GiB by name, in the order in which they lie side by side; the first is what the engine may not
            use.
        title: above the bar.
    """
    figure = Figure(figsize=(7.5, 2.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    left = 0.0
    names = [*list(parts)[1:], next(iter(parts))]
    for name, colour in zip(names, (*LINE_COLOURS[: len(names) - 1], COLOURS["free"]), strict=True):
        width = parts[name]
        axes.barh(0, width, left=left, color=colour, label=f"{name} {width:.2f}", edgecolor="white")
        left += width
    axes.set(xlim=(0, left), xlabel="GiB", yticks=())
    axes.set_title(title, fontsize=9, loc="left")
    axes.spines[["top", "left", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure

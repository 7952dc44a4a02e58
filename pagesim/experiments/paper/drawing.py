"""The paper's kinds of figures, with its numbers hollow or hatched and ours filled."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pagesim.experiments.paper.figure import Reproduced
from pagesim.experiments.paper.jobs import BEARABLE
from pagesim.experiments.paper.numbers import Number, Range
from pagesim.experiments.paper.values import PARTS, lengths
from pagesim.results.drawing import below, beside, panels, ratios, stacks
from pagesim.results.drawing import over_sizes as size_axis
from pagesim.results.style import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION

STYLES = {
    "vLLM": (BLUE, "o"),
    "Orca (Oracle)": (VERMILION, "^"),
    "Orca (Pow2)": (GREEN, "s"),
    "Orca (Max)": (ORANGE, "v"),
    "FasterTransformer": (PURPLE, "D"),
}
"""Colour and marker of each system; other systems use those that are unused in a panel."""

SERIES = ((VERMILION, "^-"), (BLUE, "o-"), (GREEN, "s--"), (ORANGE, "v--"), (PURPLE, "D-"), (SKY, "P--"))
"""Colour and line style of each series over block sizes."""


def _label(axes: Axes, x: str = "", y: str = "", title: str = "") -> None:
    axes.set_xlabel(x, fontsize=8)
    axes.set_ylabel(y, fontsize=8)
    axes.set_title(title, fontsize=9)


def _legend(axes: Axes) -> None:
    """Add a legend to a panel; lines that it covers are dimmed behind it."""
    axes.legend(fontsize=7, framealpha=0.85, edgecolor="none")


def _middle(paper: Range | None) -> float:
    return sum(paper) / 2 if paper else 0.0


def pairs(made: Reproduced, panel: str, y: str = "", x: str = "") -> Figure:
    """Return pairs of bars for the numbers that the paper prints: the paper's hatched, ours filled.

    Args:
        made: a figure.
        panel: what gets one panel each, ``series`` or ``x``; the other one labels the bars.
        y: label of the y axis; the panel's name by default.
        x: label of the x axis.
    """
    numbers = [number for number in made.numbers if number.certainty == "B"]
    label = "series" if panel == "x" else "x"
    titles = list(dict.fromkeys(getattr(number, panel) for number in numbers))
    figure, axes = panels(1, len(titles))
    for each, title in zip(axes, titles, strict=True):
        own = [number for number in numbers if getattr(number, panel) == title]
        places = np.arange(len(own))
        paper, ours = [_middle(number.paper) for number in own], [number.ours or 0.0 for number in own]
        each.bar(places - 0.2, paper, 0.38, facecolor="white", edgecolor="black", hatch="///", label="paper")
        bars = each.bar(places + 0.2, ours, 0.38, color=BLUE, label="ours")
        each.bar_label(bars, fmt=lambda value: f"{value:.3g}", fontsize=7, padding=2)
        each.set_xticks(places, [getattr(number, label).replace(" ", "\n") for number in own], fontsize=8)
        _label(each, x, y or title, title if y else "")
        each.margins(y=0.15)
    _legend(axes[0])
    return figure


def memory(made: Reproduced) -> Figure:
    """Return two stacked bars per series, the paper's next to ours, in % of the KV cache.

    Args:
        made: a figure with all `PARTS` of each series in turn.
    """
    figure, (axes,) = panels(1, 1, 7.4, 4.0)
    systems = list(dict.fromkeys(number.series for number in made.numbers))
    parts = {**PARTS, "external fragmentation & others": "others"}
    table: dict[str, list[float]] = {part: [] for part in parts.values()}
    for number in made.numbers:
        table[parts[number.x]] += [_middle(number.paper), number.ours or 0.0]
    stacks(axes, table, numbers_from=5, upwards=True, thick=0.9)
    ticks = [f"{side}\n{system}".replace(" ", "\n") for system in systems for side in ("paper", "ours")]
    axes.set_xticks(range(len(ticks)), ticks, fontsize=8)
    _label(axes, y="KV cache (%)")
    axes.set_ylim(0, 100)
    beside(axes, upwards=True)
    return figure


def histograms(made: Reproduced, longest: Sequence[float]) -> Figure:
    """Return a histogram of lengths per trace, with the paper's means dotted and ours solid.

    Args:
        made: a figure of mean lengths, with ``input`` and ``output`` as x.
        longest: length in tokens at which each panel ends.
    """
    traces = lengths(made.setting)
    figure, axes = panels(1, len(traces))
    for each, (title, trace), end in zip(axes, traces.items(), longest, strict=True):
        columns = {"input": (trace.prompt_tokens, BLUE), "output": (trace.output_tokens, VERMILION)}
        for name, (column, colour) in columns.items():
            edges = np.linspace(0, end, 81).tolist()
            each.hist(column, edges, density=True, alpha=0.5, color=colour, label=name)
            (number,) = (number for number in made.numbers if (number.series, number.x) == (title, name))
            each.axvline(number.ours or 0.0, color=colour, linewidth=1, label=f"{name}, our mean")
            each.axvline(_middle(number.paper), color=colour, linewidth=2, linestyle=":", label="paper's")
        _label(each, "tokens", "density", title)
    _legend(axes[0])
    return figure


def curves(made: Reproduced, columns: int) -> Figure:
    """Return panels of normalized latency over the request rate, cut at 1 s/token as in the paper.

    The paper's knees, read by eye, are hollow markers on the upper edge.

    Args:
        made: a figure of curves.
        columns: panels in a row.
    """
    knees = [number for number in made.numbers if number.x.startswith("knee, ")]
    titles = list(dict.fromkeys(number.x for number in knees))
    figure, axes = panels(-(-len(titles) // columns), columns, 3.6, 2.9)
    drawn: dict[str, Any] = {}
    for each, x in zip(axes, titles, strict=False):
        own = [number for number in knees if number.x == x]
        free = [style for name, style in STYLES.items() if name not in {number.series for number in own}]
        for number in own:
            colour, marker = STYLES[number.series] if number.series in STYLES else free.pop(0)
            points = sorted(made.found[number.series, x]["points"])
            # The first point beyond the cut is drawn too, so that the line leaves the panel.
            cut = next((at for at, point in enumerate(points) if point[1] > BEARABLE), len(points))
            rates, latencies, _ = zip(*points[: cut + 1], strict=True)
            look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 4, "linewidth": 1.2}
            (drawn[number.series],) = each.plot(rates, latencies, label=number.series, **look)
            if number.paper is not None:
                look = {"color": colour, "markerfacecolor": "white", "clip_on": False}
                each.plot(_middle(number.paper), BEARABLE, marker, **look)
        each.set_ylim(0, BEARABLE)
        each.set_xlim(left=0)
        _label(each, "request rate (req/s)", "normalized latency (s/token)")
        each.set_title(x.removeprefix("knee, ").removesuffix(", req/s"), fontsize=9, pad=10)
    if any(number.paper for number in knees):
        look = {"color": "grey", "markerfacecolor": "white"}
        (drawn["paper's knee, by eye"],) = axes[0].plot([], [], "o", **look)
    below(figure, drawn, columns=6)
    for each in axes[len(titles) :]:
        each.set_visible(False)
    return figure


def over_sizes(made: Reproduced, panel: str, y: str) -> Figure:
    """Return one line per series over block sizes: ours filled, the paper's hollow, its ranges as bars.

    Args:
        made: a figure; an x like ``block SIZE, UNIT`` is drawn, and a ``best block size`` is shaded.
        panel: what gets one panel each, ``series`` or ``unit``.
        y: label of the y axes, without the unit.
    """
    groups: dict[tuple[str, str], dict[str, dict[int, Number]]] = {}
    for number in made.numbers:
        if (found := re.fullmatch(r"block (\d+), (.+)", number.x)) is not None:
            title = number.series if panel == "series" else ""
            lines = groups.setdefault((title, found[2]), {})
            lines.setdefault(number.series, {})[int(found[1])] = number
    figure, axes = panels(1, len(groups), *((5.4, 3.8) if len(groups) == 1 else ()))
    for each, ((_, unit), lines) in zip(axes, groups.items(), strict=True):
        for (series, line), (colour, style) in zip(sorted(lines.items()), SERIES, strict=False):
            ours = [np.nan if number.ours is None else number.ours for number in line.values()]
            each.plot(list(line), ours, style, color=colour, markersize=4, label=series)
            quoted = {size: number.paper for size, number in line.items() if number.paper is not None}
            for size, paper in quoted.items():
                each.vlines(size, *paper, color=colour, linewidth=5, alpha=0.4)
            if quoted:
                each.plot(
                    list(quoted), list(map(_middle, quoted.values())), style[0], color=colour, zorder=1,
                    markerfacecolor="white", markersize=7, label=f"{series}, paper (by eye)",
                )  # fmt: skip
        for number in made.numbers:
            if number.series in lines and number.x == "best block size" and number.paper is not None:
                each.axvspan(*number.paper, color="black", alpha=0.1, linewidth=0, label="best in the paper")
        size_axis(each, sorted({size for line in lines.values() for size in line}), f"{y} ({unit})")
        _legend(each)
    return figure


def maps(made: Reproduced, rows: Sequence[str], columns: Sequence[str]) -> Figure:
    """Return one heat map of ratios per series.

    Args:
        made: a figure with the numbers of each series row by row.
        rows: labels of the rows.
        columns: labels of the columns: tokens of context.
    """
    titles = list(dict.fromkeys(number.series for number in made.numbers))
    figure, axes = panels(1, len(titles), 3.9, 2.6)
    for each, title in zip(axes, titles, strict=True):
        own = [number.ours for number in made.numbers if number.series == title]
        ratios(each, np.reshape(np.array(own, float), (len(rows), len(columns))), rows, columns)
        _label(each, "context (tokens)", title=title)
    return figure

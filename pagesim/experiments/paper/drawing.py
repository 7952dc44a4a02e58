"""The paper's forms of figures: its numbers hollow, ours filled; told apart by colour-blind people."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pagesim.experiments.paper.jobs import BEARABLE
from pagesim.experiments.paper.numbers import Key, Number, Quoted
from pagesim.results.plots import COLOURS
from pagesim.results.style import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION
from pagesim.workloads.trace import Trace

STYLES = {
    "vLLM": (BLUE, "o"),
    "Orca (Oracle)": (VERMILION, "^"),
    "Orca (Pow2)": (GREEN, "s"),
    "Orca (Max)": (ORANGE, "v"),
    "FasterTransformer": (PURPLE, "D"),
}
"""Colour and marker of each system; a system that is not among them takes those of one that is free."""

SERIES = ((VERMILION, "^-"), (BLUE, "o-"), (GREEN, "s--"), (ORANGE, "v--"), (PURPLE, "D-"), (SKY, "P--"))
"""Colour and line of each series over block sizes."""


def panels(rows: int, columns: int, width: float = 4.0, height: float = 3.2) -> tuple[Figure, list[Axes]]:
    """Return an empty figure of ``rows × columns`` panels, each of this size in inches, and the panels."""
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = [figure.add_subplot(rows, columns, place) for place in range(1, rows * columns + 1)]
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
        each.tick_params(labelsize=8)
    return figure, axes


def _label(axes: Axes, x: str = "", y: str = "", title: str = "") -> None:
    axes.set_xlabel(x, fontsize=8)
    axes.set_ylabel(y, fontsize=8)
    axes.set_title(title, fontsize=9)


def _legend(axes: Axes) -> None:
    """Put a legend into a panel; lines that it cannot avoid are dimmed behind it."""
    axes.legend(fontsize=7, framealpha=0.85, edgecolor="none")


def pairs(numbers: Sequence[Number], panel: str, y: str = "", x: str = "") -> Figure:
    """Return bars, two by two: the paper's hollow, ours filled.

    Args:
        numbers: in order.
        panel: what has a panel each, ``series`` or ``x``; the other one labels the bars.
        y: label of the y axis; the panel's name when left out.
        x: label of the x axis.
    """
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


def _middle(paper: Quoted | None) -> float:
    return sum(paper) / 2 if isinstance(paper, tuple) else paper or 0.0


def stacks(numbers: Sequence[Number], parts: Mapping[str, str]) -> Figure:
    """Return two stacked bars a series, the paper's hatched beside ours.

    Args:
        numbers: percent, of each series all parts in turn.
        parts: by x of a number, a key of `COLOURS`.
    """
    figure, (axes,) = panels(1, 1, 7.4, 4.0)
    systems = list(dict.fromkeys(number.series for number in numbers))
    low = {(system, side): 0.0 for system in systems for side in (0, 1)}
    for number in numbers:
        for side, value in enumerate((_middle(number.paper), number.ours or 0.0)):
            bottom = low[number.series, side]
            place = systems.index(number.series) + 0.4 * side - 0.2
            style: dict[str, Any] = {"alpha": 1.0} if side else {"alpha": 0.45, "hatch": "///"}
            if side and number.series == systems[0]:
                style["label"] = number.x
            colour = COLOURS[parts[number.x]]
            axes.bar(place, value, 0.36, bottom=bottom, color=colour, edgecolor="white", **style)
            if value >= 5:
                dark = "white" if side and parts[number.x] == "token_states" else "black"
                middle = bottom + value / 2
                axes.text(place, middle, f"{value:.1f}", ha="center", va="center", fontsize=7, color=dark)
            low[number.series, side] = bottom + value
    axes.set_xticks(range(len(systems)), [f"{system}\npaper | ours" for system in systems], fontsize=8)
    _label(axes, y="KV cache (%)")
    axes.set_ylim(0, 100)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8)
    return figure


def histograms(traces: Mapping[str, Trace], longest: Sequence[float], numbers: Sequence[Number]) -> Figure:
    """Return a histogram of lengths a trace, with the paper's means dotted and ours solid.

    Args:
        traces: by series of their numbers.
        longest: length in tokens at which each panel ends.
        numbers: mean lengths, of x ``input`` and ``output``.
    """
    figure, axes = panels(1, len(traces))
    for each, (title, trace), end in zip(axes, traces.items(), longest, strict=True):
        columns = {"input": (trace.prompt_tokens, BLUE), "output": (trace.output_tokens, VERMILION)}
        for name, (column, colour) in columns.items():
            edges = np.linspace(0, end, 81).tolist()
            each.hist(column, edges, density=True, alpha=0.5, color=colour, label=name)
            (number,) = (number for number in numbers if (number.series, number.x) == (title, name))
            each.axvline(number.ours or 0.0, color=colour, linewidth=1, label=f"{name}, our mean")
            each.axvline(_middle(number.paper), color=colour, linewidth=2, linestyle=":", label="paper's")
        _label(each, "tokens", "density", title)
    _legend(axes[0])
    return figure


def curves(
    titles: Sequence[str], found: Mapping[Key, Mapping[str, Any]], numbers: Sequence[Number], columns: int
) -> Figure:
    """Return normalized latency over the request rate, cut at 1 s/token as in the paper.

    Args:
        titles: of the panels.
        found: the ``points`` of each curve, by system and ``knee, TITLE, req/s``.
        numbers: of which the paper's knees, read by eye, are hollow markers on the upper edge.
        columns: panels in a row.
    """
    groups = {
        title: {system: each["points"] for (system, x), each in found.items() if x == f"knee, {title}, req/s"}
        for title in titles
    }
    read = {(n.x, n.series): n.paper for n in numbers if isinstance(n.paper, float)}
    figure, axes = panels(-(-len(groups) // columns), columns, 3.6, 2.9)
    alike = len({tuple(lines) for lines in groups.values()}) == 1 < len(groups)
    for each, (title, lines) in zip(axes, groups.items(), strict=False):
        free = [style for system, style in STYLES.items() if system not in lines]
        for system, points in lines.items():
            colour, marker = STYLES[system] if system in STYLES else free.pop(0)
            ordered = sorted(points)
            # The first point beyond the cut is drawn too, so that a line leaves the panel.
            cut = next((at for at, point in enumerate(ordered) if point[1] > BEARABLE), len(ordered))
            seen = ordered[: cut + 1]
            rates, latencies = [point[0] for point in seen], [point[1] for point in seen]
            each.plot(
                rates, latencies, color=colour, marker=marker, markersize=4, linewidth=1.2, label=system
            )
            if (knee := read.get((f"knee, {title}, req/s", system))) is not None:
                each.plot(knee, BEARABLE, marker, markerfacecolor="white", color=colour, clip_on=False)
        each.set_ylim(0, BEARABLE)
        each.set_xlim(left=0)
        _label(each, "request rate (req/s)", "normalized latency (s/token)")
        each.set_title(title, fontsize=9, pad=10)  # markers stand on the upper edge
        if any(x == f"knee, {title}, req/s" for x, _ in read):
            each.plot([], [], "o", markerfacecolor="white", color="grey", label="paper's knee, by eye")
        if not alike:
            _legend(each)
    if alike:
        handles, labels = axes[0].get_legend_handles_labels()
        place: dict[str, Any] = {"loc": "outside lower center", "ncols": len(labels)}
        figure.legend(handles, labels, fontsize=8, edgecolor="none", **place)
    for each in axes[len(groups) :]:
        each.set_visible(False)
    return figure


def over_sizes(numbers: Sequence[Number], panel: str, y: str) -> Figure:
    """Return lines over block sizes, one a series: ours filled, the paper's hollow, its ranges as bars.

    Args:
        numbers: those with an x like ``block SIZE, UNIT`` are drawn; a ``best block size`` is shaded.
        panel: what has a panel each, ``series`` or ``unit``.
        y: label of the y axes, but for the unit.
    """
    groups: dict[str, dict[str, dict[int, Number]]] = {}
    for number in numbers:
        if (found := re.fullmatch(r"block (\d+), (.+)", number.x)) is not None:
            title = number.series if panel == "series" else found[2]
            unit = groups.setdefault(f"{title}|{found[2]}", {})
            unit.setdefault(number.series, {})[int(found[1])] = number
    figure, axes = panels(1, len(groups), *((5.4, 3.8) if len(groups) == 1 else ()))
    for each, (title, lines) in zip(axes, groups.items(), strict=True):
        for (series, line), (colour, style) in zip(sorted(lines.items()), SERIES, strict=False):
            ours = [np.nan if number.ours is None else number.ours for number in line.values()]
            each.plot(list(line), ours, style, color=colour, markersize=4, label=series)
            quoted = {size: number.paper for size, number in line.items() if number.paper is not None}
            for size, paper in quoted.items():
                low, high = paper if isinstance(paper, tuple) else (paper, paper)
                each.vlines(size, low, high, color=colour, linewidth=5, alpha=0.4)
            if quoted:
                middles = [_middle(paper) for paper in quoted.values()]
                each.plot(
                    list(quoted), middles, style[0], color=colour, markerfacecolor="white", markersize=7,
                    zorder=1, label=f"{series}, paper (by eye)",
                )  # fmt: skip
        for number in numbers:
            if number.series in lines and number.x == "best block size" and isinstance(number.paper, tuple):
                each.axvspan(*number.paper, color="black", alpha=0.1, linewidth=0, label="best in the paper")
        sizes = sorted({size for line in lines.values() for size in line})
        each.set_xscale("log", base=2)
        each.set_xticks(sizes, [str(size) for size in sizes])
        each.set_ylim(bottom=0)
        _label(each, "block size (tokens)", f"{y} ({title.partition('|')[2]})")
        _legend(each)
    return figure


def maps(tables: Mapping[str, np.ndarray[Any, Any]], rows: Sequence[str], columns: Sequence[str]) -> Figure:
    """Return a map of ratios a table: purple where they are below 1, orange where they are above.

    Args:
        tables: by title, ``[rows, columns]``.
        rows: labels.
        columns: labels: tokens of context.
    """
    figure, axes = panels(1, len(tables), 3.9, 2.6)
    for each, (title, table) in zip(axes, tables.items(), strict=True):
        # Purple to orange can be told apart with any eyes; 1 is white.
        each.imshow(np.log10(table), cmap="PuOr_r", vmin=-1.5, vmax=1.5, aspect="auto")
        for (row, column), value in np.ndenumerate(table):
            colour = "white" if abs(np.log10(value)) > 1 else "black"
            each.text(column, row, f"{value:.2g}", ha="center", va="center", fontsize=8, color=colour)
        each.set_xticks(range(len(columns)), list(columns))
        each.set_yticks(range(len(rows)), list(rows))
        _label(each, "context (tokens)", title=title)
    return figure

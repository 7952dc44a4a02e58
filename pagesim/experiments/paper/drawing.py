"""The paper's forms of figures: its numbers hollow, ours filled; told apart by colour-blind people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pagesim.experiments.paper.jobs import BEARABLE, Point
from pagesim.experiments.paper.numbers import Number
from pagesim.results.style import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION

STYLES = {
    "vllm-sosp": (BLUE, "o"),
    "orca-oracle": (VERMILION, "^"),
    "orca-pow2": (GREEN, "s"),
    "orca-max": (ORANGE, "v"),
    "static": (PURPLE, "D"),
}
"""Colour and marker of each system."""


def pairs(axes: Axes, numbers: Sequence[Number], labels: Sequence[str], label: str) -> None:
    """Draw numbers as bars, two by two: the paper's hollow, ours filled.

    Args:
        axes: where.
        numbers: in order, ``[N]``.
        labels: under them, ``[N]``.
        label: of the y axis.
    """
    places = np.arange(len(numbers))
    paper = [_middle(number) for number in numbers]
    ours = [number.ours if number.ours is not None else 0.0 for number in numbers]
    axes.bar(places - 0.2, paper, 0.38, facecolor="white", edgecolor="black", hatch="///", label="paper")
    bars = axes.bar(places + 0.2, ours, 0.38, color=BLUE, label="ours")
    ranges = [number.paper if isinstance(number.paper, tuple) else None for number in numbers]
    for place, each in zip(places, ranges, strict=True):
        if each is not None:
            axes.vlines(place - 0.2, *each, color="black", linewidth=3)
    axes.bar_label(bars, fmt=lambda value: f"{value:.3g}", fontsize=7, padding=2)
    axes.set_xticks(places, list(labels), fontsize=8)
    axes.set_ylabel(label, fontsize=8)
    axes.margins(y=0.15)


def _middle(number: Number) -> float:
    if number.paper is None:
        return 0.0
    return sum(number.paper) / 2 if isinstance(number.paper, tuple) else number.paper


def curves(
    axes: Axes,
    lines: Mapping[str, Sequence[Point]],
    labels: Mapping[str, str],
    read: Mapping[str, float],
) -> None:
    """Draw normalized latency over the request rate, cut at 1 s/token as in the paper.

    Args:
        axes: where.
        lines: by system, its points.
        labels: of the systems.
        read: by system, the paper's knee, read by eye: a hollow marker on the upper edge.
    """
    for system, points in lines.items():
        colour, marker = STYLES.get(system, (SKY, "P"))
        seen = _until_cut(points)
        axes.plot(
            [point[0] for point in seen],
            [point[1] for point in seen],
            color=colour,
            marker=marker,
            markersize=4,
            linewidth=1.2,
            label=labels[system],
        )
        if system in read:
            axes.plot(read[system], BEARABLE, marker, markerfacecolor="white", color=colour, clip_on=False)
    axes.set_ylim(0, BEARABLE)
    axes.set_xlim(left=0)
    axes.set_xlabel("request rate (req/s)", fontsize=8)
    axes.set_ylabel("normalized latency (s/token)", fontsize=8)


def _until_cut(points: Sequence[Point]) -> list[Point]:
    """Return the points below the cut and the first beyond it, so that a line leaves the panel."""
    ordered = sorted(points, key=lambda point: point[0])
    seen = []
    for point in ordered:
        seen.append(point)
        if point[1] > BEARABLE:
            break
    return seen


def hollow(axes: Axes, label: str) -> None:
    """Say in the legend what a hollow marker is."""
    axes.plot([], [], "o", markerfacecolor="white", color="grey", label=label)


def legend(axes: Axes) -> None:
    """Put a legend into a panel; lines that it cannot avoid are dimmed behind it."""
    axes.legend(fontsize=7, framealpha=0.85, edgecolor="none")


def legend_below(figure: Figure, axes: Axes) -> None:
    """Put the legend of one panel, which holds for all of them, below the figure."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=len(labels), fontsize=8, edgecolor="none"
    )

"""The figure of engines at saturation: memory use, throughput and time to first token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pagesim.accounting.metrics import STRICT_ENTRIES
from pagesim.results.drawing import SMALL, bare, below, empty, head, stacks
from pagesim.results.style import LOOPS

Rows = Mapping[tuple[str, str], Mapping[str, Any]]
"""Rows of a table, by policy and loop."""


def engine_bars(loads: Mapping[str, Iterable[Mapping[str, Any]]], load: str = "") -> Figure:
    """Draw engines with equal KV cache bytes next to each other, with one row of panels per workload.

    Args:
        loads: rows from `pagesim.experiments.engines.serve_engines`, by name of the workload.
        load: the model and the GPU, for the line below the title.
    """
    tables: dict[str, Rows] = {
        name: {(row["policy"], row["loop"]): row for row in rows if row["sizing"] == "same"}
        for name, rows in loads.items()
    }
    policies = list(dict.fromkeys(policy for rows in tables.values() for policy, _ in rows))
    figure = empty(11, 1.1 + len(loads) * (0.7 + 0.3 * len(policies)))
    panels = figure.subplots(len(loads), 3, sharey=True, squeeze=False, width_ratios=(2.2, 1, 1))
    drawn: dict[str, Any] = {}
    for (name, rows), (memory, speed, wait) in zip(tables.items(), panels, strict=True):
        drawn |= _memory(memory, rows, policies)
        memory.set_title(name, fontsize=10, loc="left")
        for axes, column, label in ((speed, "tokens_per_s", "tokens/s"), (wait, "ttft_p50_s", "TTFT p50, s")):
            drawn |= _pairs(axes, rows, policies, column)
            axes.set_xlabel(label)
        memory.set_yticks(range(len(policies)), policies)
        memory.set_ylim(len(policies) - 0.4, -0.6)
    for axes in panels.flat:
        axes.tick_params(axis="y", length=0)
    bare(*panels.flat, but=("bottom",))
    below(figure, drawn)
    title = "Engines at saturation: where the memory is, how much they serve, how long requests wait"
    return head(figure, title, load)


def _memory(axes: Axes, rows: Rows, policies: list[str]) -> dict[str, Any]:
    """Draw each engine's ledger as a bar and its batch size as a number; return what was drawn, by label."""
    own = [rows[policy, "none"] for policy in policies]
    table = {
        entry: [row.get(f"{entry}_percent", 0.0) if "batch" in row else 0.0 for row in own]
        for entry in STRICT_ENTRIES
    }
    drawn = stacks(axes, table)
    for place, row in enumerate(own):
        if "batch" in row:
            axes.text(101, place, f"{row['batch']:.0f}", va="center", fontsize=SMALL)
    axes.text(101, -0.75, "batch", fontsize=SMALL)
    axes.set(xlim=(0, 108), xlabel="% of the KV cache, while requests wait")
    return drawn


def _pairs(axes: Axes, rows: Rows, policies: list[str], column: str) -> dict[str, Any]:
    """Draw a metric of each engine with and without its loop's time; return what was drawn, by label."""
    places = range(len(policies))
    return {
        part.label: axes.barh(
            [place + shift for place in places],
            [rows[policy, loop].get(column) or 0.0 for policy in policies],
            0.36,
            color=part.colour,
        )
        for (loop, part), shift in zip(LOOPS.items(), (-0.19, 0.19), strict=True)
    }

"""Fig. 11: lengths of prompts and outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pagesim.experiments.paper.figures.base import Outcomes, PaperFigure, nothing
from pagesim.experiments.paper.numbers import Number, Percent, Points
from pagesim.experiments.paper.setting import Setting
from pagesim.workloads import make_trace
from pagesim.workloads.trace import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = {"sharegpt": (161.31, 337.99), "alpaca": (19.31, 58.45)}
TITLES = {"sharegpt": "ShareGPT", "alpaca": "Alpaca"}

LONGEST = 2048
"""The paper's means are those of requests of at most so many tokens; its generator leaves these out too."""

DRAWN = 80_000
"""Requests that are drawn from a fitted model: about as many as the paper's lengths are."""


def lengths(setting: Setting, workload: str) -> Trace:
    """Return requests whose lengths are counted."""
    if setting.real(workload):
        trace = make_trace(setting.trace(workload), arrivals="all-at-once")
    else:
        trace = make_trace(setting.trace(workload), num_requests=DRAWN // (20 if setting.quick else 1))
    return trace.take(np.flatnonzero(trace.prompt_tokens + trace.output_tokens <= LONGEST))


def numbers(setting: Setting, _: Outcomes) -> list[Number]:
    """Return mean lengths."""
    found = []
    for workload, (prompt, output) in PAPER.items():
        trace = lengths(setting, workload)
        # The paper prints two decimals: half of the last is all that an exact mean may be off.
        bar = Points(0.005) if workload == "sharegpt" else Percent(2.5)
        found += [
            Number("fig11", TITLES[workload], "input", prompt, "B", float(trace.prompt_tokens.mean()), bar),
            Number("fig11", TITLES[workload], "output", output, "B", float(trace.output_tokens.mean()), bar),
        ]
    return found


def draw(setting: Setting, _: Outcomes, numbers: Sequence[Number]) -> Figure:
    """Draw a histogram a workload, with the paper's means dotted and ours solid."""
    from pagesim.experiments.paper.drawing import legend
    from pagesim.results.drawing import panels
    from pagesim.results.style import BLUE, VERMILION

    figure, axes = panels(1, 2)
    for each, workload in zip(axes, PAPER, strict=True):
        trace = lengths(setting, workload)
        edges = np.linspace(0, 2048 if workload == "sharegpt" else 400, 81)
        for column, name, colour in (
            (trace.prompt_tokens, "input", BLUE),
            (trace.output_tokens, "output", VERMILION),
        ):
            each.hist(column, edges.tolist(), density=True, alpha=0.5, color=colour, label=name)
            for number in numbers:
                if (number.series, number.x) == (TITLES[workload], name):
                    assert isinstance(number.paper, float)
                    assert number.ours is not None
                    each.axvline(number.ours, color=colour, linewidth=1, label=f"{name}, our mean")
                    each.axvline(number.paper, color=colour, linewidth=2, linestyle=":", label="paper's")
        each.set_title(TITLES[workload], fontsize=9)
        each.set_xlabel("tokens", fontsize=8)
        each.set_ylabel("density", fontsize=8)
    legend(axes[0])
    return figure


FIGURE = PaperFigure(
    "fig11",
    "Lengths of prompts and outputs",
    "mean tokens over all requests of at most 2048 tokens in all",
    "lengths",
    nothing,
    numbers,
    draw,
)

"""Fig. 15: memory that samples and beams save by sharing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pagesim.experiments.paper.figures.base import Outcomes, PaperFigure
from pagesim.experiments.paper.jobs import Job, Replay
from pagesim.experiments.paper.numbers import Bar, Certainty, Inside, Number, Points, Quoted
from pagesim.experiments.paper.setting import OPT_13B, Setting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTHS = (2, 4, 6)
KINDS = {"n": "parallel", "beam_width": "beam"}
PAPER = {"n": (6.09, 8.53, 9.79), "beam_width": (37.56, 53.13, 55.16)}
"""Percent saved on Alpaca."""

BARS: dict[str, Bar] = {"n": Points(1.5), "beam_width": Points(3)}

SHAREGPT: dict[str, Quoted] = {"n": (16.2, 30.5), "beam_width": (44.3, 66.3)}
"""Percent saved on ShareGPT, over the widths."""

TITLES = {"alpaca": "Alpaca", "sharegpt": "ShareGPT"}
RATES = {"alpaca": 20.0, "sharegpt": 0.5}
"""Of ShareGPT the paper gives none; at this one the cache of OPT-13B holds six outputs a request."""


def jobs(setting: Setting) -> dict[str, Job]:
    """900 s of arrivals; iterations from 300 s on count."""
    return {
        f"{workload} {kind} {width}": Replay(
            setting.scenario(
                OPT_13B,
                "vllm-sosp",
                workload,
                seconds=900,
                rate=rate,
                window=setting.window(300, 900),
                until=setting.seconds(900),
                **{kind: width},
            )
        )
        for workload, rate in RATES.items()
        for kind in KINDS
        for width in WIDTHS
    }


def numbers(_: Setting, found: Outcomes) -> list[Number]:
    """Return the share of blocks saved, in percent."""
    rows = []
    for workload, title in TITLES.items():
        for kind, name in KINDS.items():
            for width, value in zip(WIDTHS, PAPER[kind], strict=True):
                saving = found[f"{workload} {kind} {width}"]["sharing"]["saving"]
                paper: Quoted = value if workload == "alpaca" else SHAREGPT[kind]
                certainty: Certainty = "B" if workload == "alpaca" else "V"
                bar = BARS[kind] if workload == "alpaca" else Inside()
                ours = None if saving is None else 100 * saving
                rows.append(Number("fig15", f"{name}, {title}", str(width), paper, certainty, ours, bar))
    return rows


def draw(_: Setting, __: Outcomes, numbers: Sequence[Number]) -> Figure:
    """Draw a panel for samples and one for beams, on Alpaca."""
    from pagesim.experiments.paper.drawing import legend, pairs
    from pagesim.results.drawing import panels

    figure, axes = panels(1, 2)
    for each, name in zip(axes, KINDS.values(), strict=True):
        chosen = [number for number in numbers if number.series == f"{name}, Alpaca"]
        pairs(each, chosen, [number.x for number in chosen], "memory saved (%)")
        each.set_title(f"{name}, Alpaca", fontsize=9)
        each.set_xlabel("outputs a request", fontsize=8)
    legend(axes[0])
    return figure


FIGURE = PaperFigure(
    "fig15",
    "Memory saved by sharing",
    "OPT-13B, 20 requests/s of Alpaca, 900 s; 1 − 1/r, r the mean over the iterations from 300 to 900 s of "
    "logical over physical blocks. The beam model is fitted to Alpaca's; ShareGPT's (0.5 requests/s, chosen "
    "by us) are predictions, and each width is held against the range that the text gives for all of them",
    "memory",
    jobs,
    numbers,
    draw,
)

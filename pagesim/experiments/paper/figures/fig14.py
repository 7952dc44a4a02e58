"""Fig. 14: latency over request rates with several outputs a request."""

from __future__ import annotations

from typing import Any

from pagesim.experiments.paper.figures.fig12 import ORDER
from pagesim.experiments.paper.figures.fig12 import SECONDS as SINGLE_SECONDS
from pagesim.experiments.paper.figures.panels import (
    Line,
    Panel,
    Ratio,
    around,
    evenly,
    panel_figure,
)
from pagesim.experiments.paper.setting import OPT_13B

WIDTHS = (2, 4, 6)

SHARES = {"vllm-sosp": 30.0, "orca-oracle": 20.0, "orca-pow2": 13.0, "orca-max": 7.0}
"""Requests/s around which to look, over the number of outputs."""

SECONDS = {"n": 600.0, "beam_width": 300.0}
"""Of arrivals: beams fork every few tokens, and an hour of that takes long to replay."""

SINGLE = "one output"


def _panel(title: str, width: int, **options: Any) -> Panel:
    lines = tuple(Line(around(SHARES[policy] / width), policy, options=options) for policy in ORDER)
    return Panel(title, OPT_13B, "alpaca", lines, SECONDS[next(iter(options))])


PANELS = (
    *(_panel(f"{width} samples", width, n=width) for width in WIDTHS),
    *(_panel(f"{width} beams", width, beam_width=width) for width in WIDTHS),
)

# The same jobs as in Fig. 12, so that they are done once.
REFERENCE = Panel(
    SINGLE,
    OPT_13B,
    "alpaca",
    (Line(evenly(20.0, 31.5), "vllm-sosp"), Line(evenly(15.0, 24.0), "orca-oracle")),
    SINGLE_SECONDS["alpaca"],
)

RATIOS = (
    Ratio(SINGLE, "vLLM", "Orca (Oracle)", 1.3, "V"),
    *(Ratio(panel.title, "vLLM", "Orca (Oracle)", None, "") for panel in PANELS[:-1]),
    Ratio("6 beams", "vLLM", "Orca (Oracle)", 2.3, "V"),
)


FIGURE = panel_figure(
    "fig14",
    "Latency with parallel samples and beams",
    "OPT-13B, Alpaca, arrivals for 10 min (samples) and 5 min (beams); latency "
    "and knees as in Fig. 12, each sample of a request counted",
    "step times",
    PANELS,
    RATIOS,
    columns=3,
    beside=(REFERENCE,),
)

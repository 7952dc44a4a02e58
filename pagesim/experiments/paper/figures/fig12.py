"""Fig. 12: latency over request rates, three models, two workloads."""

from __future__ import annotations

from collections.abc import Sequence

from pagesim.experiments.paper.figures.base import Outcomes
from pagesim.experiments.paper.figures.panels import (
    Line,
    Panel,
    Ratio,
    around,
    evenly,
    knees,
    panel_figure,
    quotient,
)
from pagesim.experiments.paper.numbers import Inside, Number
from pagesim.experiments.paper.setting import OPT_13B, OPT_66B, OPT_175B, Deployment

SECONDS = {"alpaca": 900.0}
"""The paper's traces are an hour, its artifact's scripts run 600 to 900 s. Alpaca's rates are fifteen times
ShareGPT's, and so is what an hour of it takes to replay."""

ORDER = ("vllm-sosp", "orca-oracle", "orca-pow2", "orca-max")


def _panel(
    server: Deployment,
    workload: str,
    name: str,
    ranges: Sequence[tuple[float, float]],
    read: Sequence[float],
    batch: int,
    static: tuple[float, float] | None = None,
) -> Panel:
    """Return a panel; ranges are the artifact's rates in `ORDER`, knees that plus FasterTransformer's."""
    lines = [
        Line(evenly(*between), policy, knee)
        for policy, between, knee in zip(ORDER, ranges, read, strict=False)
    ]
    rates = evenly(*static) if static else around(read[-1])
    lines.append(Line(rates, "static", read[-1], {"max_batch": batch}))
    return Panel(f"{server.title}, {name}", server, workload, tuple(lines), SECONDS.get(workload))


PANELS = (
    _panel(
        OPT_13B,
        "sharegpt",
        "ShareGPT",
        ((1.0, 2.0), (0.5, 1.5), (0.25, 0.9), (0.2, 0.75)),
        (1.9, 1.1, 0.75, 0.5, 0.3),
        5,
        (0.01, 0.35),
    ),
    _panel(
        OPT_66B,
        "sharegpt",
        "ShareGPT",
        ((0.4, 1.0), (0.2, 0.5), (0.1, 0.35), (0.1, 0.3)),
        (0.95, 0.65, 0.4, 0.2, 0.1),
        2,
    ),
    _panel(
        OPT_175B,
        "sharegpt",
        "ShareGPT",
        ((1.5, 3.0), (0.8, 1.8), (0.5, 1.5), (0.25, 1.25)),
        (2.4, 1.8, 1.5, 1.0, 0.5),
        24,
    ),
    _panel(
        OPT_13B,
        "alpaca",
        "Alpaca",
        ((20.0, 31.5), (15.0, 24.0), (7.5, 18.0), (2.0, 5.0)),
        (28.0, 20.0, 13.0, 7.0, 5.0),
        14,
    ),
    _panel(
        OPT_66B,
        "alpaca",
        "Alpaca",
        ((11.0, 20.0), (6.0, 12.0), (3.0, 7.0), (0.05, 0.25)),
        (18.0, 13.0, 9.0, 5.0, 3.0),
        8,
    ),
    _panel(
        OPT_175B,
        "alpaca",
        "Alpaca",
        ((15.0, 22.0), (15.0, 22.0), (10.0, 19.0), (1.25, 7.0)),
        (20.0, 16.0, 13.0, 6.0, 4.0),
        80,
    ),
)

ORACLE, MOST, FASTER = (1.7, 2.7), (2.7, 8.0), (0.0, 22.0)
"""How many times the rate of Orca (Oracle), Orca (Max) and FasterTransformer vLLM sustains on ShareGPT."""

SHAREGPT = tuple(panel.title for panel in PANELS[:3])

RATIOS = tuple(
    # The text's ranges are over the three models; for the smallest they were promised.
    Ratio(panel, "vLLM", under, paper, "V", Inside() if panel == SHAREGPT[0] else None)
    for panel in SHAREGPT
    for under, paper in (("Orca (Oracle)", ORACLE), ("Orca (Max)", MOST), ("FasterTransformer", FASTER))
)


def lead(found: Outcomes) -> list[Number]:
    """Return how vLLM's lead shrinks where computing is the bound."""
    ours = knees(found, PANELS)
    leads = [
        quotient(ours[f"{model}, Alpaca", "vLLM"], ours[f"{model}, Alpaca", "Orca (Oracle)"])
        for model in ("OPT-175B", "OPT-13B")
    ]
    return [
        Number(
            "fig12",
            "vLLM / Orca (Oracle)",
            "lead on Alpaca, OPT-175B over OPT-13B",
            (0.0, 1.0),
            "V",
            quotient(*leads),
            Inside(),
        )
    ]


FIGURE = panel_figure(
    "fig12",
    "Latency over request rates",
    "mean over requests of (finish − arrival) / output tokens, all drained; arrivals for an hour "
    "(15 min for Alpaca and OPT-175B); a knee is the rate at 1 s/token on a straight line between two rates "
    "at most 4 % apart",
    "step times",
    PANELS,
    RATIOS,
    columns=3,
    more=lead,
)

"""Fig. 13: how many requests run together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pagesim.experiments.paper.engine import FITTED_TO, RATES
from pagesim.experiments.paper.figures.base import Outcomes, PaperFigure
from pagesim.experiments.paper.jobs import Job, Replay
from pagesim.experiments.paper.numbers import FITTED, Bar, Number, Percent
from pagesim.experiments.paper.setting import OPT_13B, SYSTEMS, Setting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = {"sharegpt": "ShareGPT, 2 req/s", "alpaca": "Alpaca, 30 req/s"}
POLICIES = ("orca-max", "orca-pow2", "orca-oracle", "vllm-sosp")
PAPER = {
    "sharegpt": (7.00, 9.81, 13.62, FITTED_TO["sharegpt"]),
    "alpaca": (7.00, 43.24, 72.75, FITTED_TO["alpaca"]),
}

MORE = {"orca-oracle": 2.2, "orca-max": 4.3}
"""How many times more requests vLLM batches on ShareGPT, in the paper's words."""


def jobs(setting: Setting) -> dict[str, Job]:
    """An hour, of which the first ten minutes do not count."""
    return {
        f"{workload} {policy}": Replay(
            setting.scenario(
                OPT_13B, policy, workload, rate=RATES[workload], window=setting.window(600, 3600)
            )
        )
        for workload in PAPER
        for policy in POLICIES
    }


def numbers(setting: Setting, found: Outcomes) -> list[Number]:
    """Return mean batches, and vLLM's over others'."""
    batches = {name: outcome["batch"]["mean"] for name, outcome in found.items()}
    rows = []
    for workload, values in PAPER.items():
        for policy, value in zip(POLICIES, values, strict=True):
            bar: Bar | str | None = Percent(3)
            if policy == "vllm-sosp":
                bar = FITTED if setting.fitted else None
            ours = batches[f"{workload} {policy}"]
            rows.append(Number("fig13", SYSTEMS[policy], PANELS[workload], value, "B", ours, bar))
    for policy, value in MORE.items():
        ours = batches["sharegpt vllm-sosp"] / batches[f"sharegpt {policy}"]
        rows.append(Number("fig13", f"vLLM / {SYSTEMS[policy]}", PANELS["sharegpt"], value, "V", ours))
    return rows


def draw(_: Setting, __: Outcomes, numbers: Sequence[Number]) -> Figure:
    """Draw a panel a workload, two bars a system."""
    from pagesim.experiments.paper.drawing import legend, pairs
    from pagesim.results.drawing import panels

    figure, axes = panels(1, 2)
    for each, panel in zip(axes, PANELS.values(), strict=True):
        chosen = [number for number in numbers if number.x == panel and "/" not in number.series]
        pairs(each, chosen, [n.series.replace(" ", "\n") for n in chosen], "batched requests, mean")
        each.set_title(panel, fontsize=9)
    legend(axes[0])
    return figure


FIGURE = PaperFigure(
    "fig13",
    "How many requests run together",
    "OPT-13B; mean over the iterations scheduled from 600 to 3600 s of an hour",
    "step times (the Orca bars hardly)",
    jobs,
    numbers,
    draw,
)

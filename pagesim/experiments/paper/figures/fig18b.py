"""Fig. 18b: latency over block sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pagesim.experiments.ablations import best
from pagesim.experiments.paper.figures.base import Outcomes, PaperFigure
from pagesim.experiments.paper.jobs import Ablated, Job
from pagesim.experiments.paper.numbers import Inside, Number
from pagesim.experiments.paper.setting import OPT_13B, Setting
from pagesim.experiments.paper.swaps import SIZES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATES = {"sharegpt": 2.01, "alpaca": 30.1}
"""Alpaca's is the artifact's, ShareGPT's that of its Fig. 19b."""

TITLES = {"sharegpt": "ShareGPT", "alpaca": "Alpaca"}
BEST = {"sharegpt": (16.0, 128.0), "alpaca": (16.0, 32.0)}
SECONDS = 600


def jobs(setting: Setting) -> dict[str, Job]:
    """Return a replay for each workload and block size, always in the same memory."""
    return {
        f"{workload} {size}": Ablated(
            setting.scenario(
                OPT_13B,
                "vllm-sosp",
                workload,
                seconds=SECONDS,
                rate=rate,
                cost=setting.cost_on(OPT_13B, "vllm-sosp", block_sizes=True),
            ),
            size,
        )
        for workload, rate in RATES.items()
        for size in SIZES
    }


def latencies(found: Outcomes, workload: str) -> dict[int, float]:
    """Return seconds a token by block size."""
    return {size: found[f"{workload} {size}"]["normalized_latency"]["mean"] for size in SIZES}


def numbers(_: Setting, found: Outcomes) -> list[Number]:
    """Return the best block sizes, up to which size others are as good, and all latencies."""
    rows = []
    for workload, title in TITLES.items():
        line = latencies(found, workload)
        least, alike = best(line)
        low, high = BEST[workload]
        rows.append(Number("fig18b", title, "best block size", (low, high), "V", float(least), Inside()))
        rows.append(Number("fig18b", title, "largest within 5 % of the best", high, "V", float(max(alike))))
        rows += [
            Number("fig18b", title, f"block {size}, s/token", None, "", value) for size, value in line.items()
        ]
    return rows


def draw(_: Setting, found: Outcomes, __: Sequence[Number]) -> Figure:
    """Draw latency over block sizes; what the paper calls best is shaded."""
    from pagesim.experiments.paper.drawing import legend
    from pagesim.results.drawing import over_sizes, panels
    from pagesim.results.style import BLUE, VERMILION

    figure, axes = panels(1, 2)
    for each, (workload, title), colour in zip(axes, TITLES.items(), (BLUE, VERMILION), strict=True):
        line = latencies(found, workload)
        each.plot(list(line), list(line.values()), "o-", color=colour, markersize=4, label=f"{title}, ours")
        each.axvspan(*BEST[workload], color="black", alpha=0.1, linewidth=0, label="best in the paper")
        over_sizes(each, SIZES, "normalized latency (s/token)")
        legend(each)
    return figure


FIGURE = PaperFigure(
    "fig18b",
    "Latency over block sizes",
    "OPT-13B, 600 s of arrivals, the same memory at every block size; by `pagesim ablate block-size`. Costs "
    "are analytic unless a profile is given: those measured by others know block 16 alone",
    "step times and their dependence on the block size",
    jobs,
    numbers,
    draw,
)

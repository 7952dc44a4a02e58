"""Fig. 19b: swapping against recomputing, end to end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pagesim.experiments.paper.figures.base import Outcomes, PaperFigure
from pagesim.experiments.paper.jobs import Ablated, Job
from pagesim.experiments.paper.numbers import Inside, Number, Quoted
from pagesim.experiments.paper.setting import OPT_13B, Setting
from pagesim.experiments.paper.swaps import SIZES, blocks_profile

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WAYS = {"recompute": ("recompute", False), "swap": ("swap", False), "swap, copy by copy": ("swap", True)}
"""How to preempt, and whether swaps cost what the paper's own did."""

ALIKE_AT, ALIKE = (16, 32, 64), (0.8, 1.25)
"""Where the paper finds both alike; taken to mean within a quarter."""

MOST = 1.2
"""Recomputing never costs more than so many times swapping."""

WORST = (2.2, 2.5)
"""Seconds a token at block 1, read by eye: the worst of all."""


def jobs(setting: Setting) -> dict[str, Job]:
    """Return a replay for each way and block size.

    Raises:
        PagesimError: the cost is no profile.
    """
    cost = setting.cost_on(OPT_13B, "vllm-sosp", block_sizes=True)
    blocks_profile(cost, OPT_13B.model, OPT_13B.gpu, OPT_13B.tp)
    scenario = setting.scenario(
        OPT_13B,
        "vllm-sosp",
        "sharegpt",
        seconds=600,
        rate=2.01,
        cost=cost,
    )
    return {
        f"{name} {size}": Ablated(scenario, size, way, copies)
        for name, (way, copies) in WAYS.items()
        for size in SIZES
    }


def latency(found: Outcomes, name: str, size: int) -> float:
    """Return seconds a token."""
    value: float = found[f"{name} {size}"]["normalized_latency"]["mean"]
    return value


def numbers(_: Setting, found: Outcomes) -> list[Number]:
    """Return both ways against each other at each size, and latencies."""
    rows = []
    for size in SIZES:
        ratio = latency(found, "recompute", size) / latency(found, "swap", size)
        paper: Quoted = ALIKE if size in ALIKE_AT else (0.0, MOST)
        rows.append(Number("fig19b", "recompute / swap", f"block {size}", paper, "V", ratio, Inside()))
        ratio = latency(found, "recompute", size) / latency(found, "swap, copy by copy", size)
        rows.append(Number("fig19b", "recompute / swap, copy by copy", f"block {size}", paper, "V", ratio))
    for name in WAYS:
        for size in SIZES:
            worst = name.startswith("swap") and size == 1
            rows.append(
                Number(
                    "fig19b",
                    name,
                    f"block {size}, s/token",
                    WORST if worst else None,
                    "F" if worst else "",
                    latency(found, name, size),
                )
            )
    return rows


def draw(_: Setting, found: Outcomes, __: Sequence[Number]) -> Figure:
    """Draw latency over block sizes, a line a way."""
    from pagesim.experiments.paper.drawing import legend
    from pagesim.results.drawing import over_sizes, panels
    from pagesim.results.style import BLUE, GREEN, VERMILION

    figure, (axes,) = panels(1, 1, 5.4, 3.8)
    for name, colour, style in zip(WAYS, (VERMILION, BLUE, GREEN), ("^-", "o-", "s--"), strict=True):
        values = [latency(found, name, size) for size in SIZES]
        axes.plot(SIZES, values, style, color=colour, markersize=4, label=f"{name}, ours")
    axes.vlines(1, *WORST, color="black", linewidth=3, label="swap, paper (by eye)")
    over_sizes(axes, SIZES, "normalized latency (s/token)")
    legend(axes)
    return figure


FIGURE = PaperFigure(
    "fig19b",
    "Swapping against recomputing, end to end",
    "OPT-13B, ShareGPT, 2.01 requests/s for 600 s, the same memory at every block size; by `pagesim ablate "
    "preemption`. Costs are analytic unless a profile is given",
    "step times, transfers and their dependence on the block size",
    jobs,
    numbers,
    draw,
)

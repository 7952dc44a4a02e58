"""Fig. 2: where the KV cache goes under each system."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pagesim.experiments.paper.figures.base import Outcomes, PaperFigure
from pagesim.experiments.paper.jobs import Job, Replay
from pagesim.experiments.paper.numbers import Number, Points
from pagesim.experiments.paper.setting import OPT_13B, SYSTEMS, Setting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENTRIES = {
    "token_states": "token states",
    "reservation": "reservation",
    "internal": "internal fragmentation",
    "external": "external fragmentation & others",
}

PAPER = {
    "orca-max": (20.4, 13.3, 57.3, 8.9),
    "orca-pow2": (26.8, 17.9, 13.6, 41.6),
    "orca-oracle": (38.2, 25.2, 0.0, 36.6),
    "vllm-sosp": (96.3, 0.0, 0.0, 3.7),
}
"""Percent of the cache, in the order of `ENTRIES`; for vLLM the paper prints token states and the rest."""

BAR = Points(1.5)


def jobs(setting: Setting) -> dict[str, Job]:
    """4 requests/s for 900 s; only iterations from 300 s on count, and none begins after 900 s."""
    return {
        policy: Replay(
            setting.scenario(
                OPT_13B,
                policy,
                "sharegpt",
                seconds=900,
                rate=4.0,
                window=setting.window(300, 900),
                until=setting.seconds(900),
            )
        )
        for policy in PAPER
    }


def numbers(_: Setting, found: Outcomes) -> list[Number]:
    """Return the shares of the cache, in percent."""
    return [
        Number(
            "fig2",
            SYSTEMS[policy],
            label,
            value,
            "B",
            found[policy]["memory"]["paper"]["per_iteration"][entry],
            BAR,
        )
        for policy, values in PAPER.items()
        for (entry, label), value in zip(ENTRIES.items(), values, strict=True)
    ]


def draw(_: Setting, __: Outcomes, numbers: Sequence[Number]) -> Figure:
    """Draw two stacked bars a system."""
    from pagesim.results.drawing import panels
    from pagesim.results.style import PARTS, ink

    colours = {label: PARTS[entry].colour for entry, label in ENTRIES.items()}
    figure, (axes,) = panels(1, 1, 7.4, 4.0)
    systems = [SYSTEMS[policy] for policy in PAPER]
    low = {(system, side): 0.0 for system in systems for side in (0, 1)}
    for number in numbers:
        for side, value in enumerate((number.paper, number.ours)):
            height = value if isinstance(value, float | int) else 0.0
            bottom = low[number.series, side]
            place = systems.index(number.series) + 0.4 * side - 0.2
            axes.bar(
                place,
                height,
                0.36,
                bottom=bottom,
                color=colours[number.x],
                alpha=1.0 if side else 0.45,
                hatch=None if side else "///",
                edgecolor="white",
                label=number.x if side and number.series == systems[0] else None,
            )
            if height >= 5:
                axes.text(
                    place, bottom + height / 2, f"{height:.1f}", ha="center", va="center", fontsize=7,
                    color=ink(colours[number.x]) if side else "black",
                )  # fmt: skip
            low[number.series, side] = bottom + height
    axes.set_xticks(range(len(systems)), [f"{system}\npaper | ours" for system in systems], fontsize=8)
    axes.set_ylabel("KV cache (%)", fontsize=8)
    axes.set_ylim(0, 100)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8)
    return figure


FIGURE = PaperFigure(
    "fig2",
    "Where the KV cache goes",
    "OPT-13B, ShareGPT, 4 requests/s, 900 s; percent of the cache, mean over the iterations scheduled from "
    "300 to 900 s",
    "memory",
    jobs,
    numbers,
    draw,
)

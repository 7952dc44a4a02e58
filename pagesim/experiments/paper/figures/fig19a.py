"""Fig. 19a: swapping against recomputing, alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pagesim.costs.specs import model
from pagesim.experiments.ablations import Undone, undo
from pagesim.experiments.paper.figures.base import Outcomes, PaperFigure
from pagesim.experiments.paper.jobs import Job
from pagesim.experiments.paper.numbers import Inside, Number, Percent
from pagesim.experiments.paper.setting import OPT_13B, Setting
from pagesim.experiments.paper.swaps import READ_AT_1_S, SIZES, TOKENS, blocks_profile, copy_by_copy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MS = 1e3

SWAP, RECOMPUTE, COPIES = "swap out and in", "recompute", "swap, copy by copy"

FLAT = 0.1
"""A curve is flat when its largest value is above its least by no more than this share."""


def measured(setting: Setting) -> tuple[list[Undone], list[Undone]]:
    """Return what undoing takes at each size by the profile, and with copies as in the paper."""
    cost = setting.cost_on(OPT_13B, "vllm-sosp", block_sizes=True)
    profile, _ = blocks_profile(cost, OPT_13B.model, OPT_13B.gpu, OPT_13B.tp)
    sizes = [size for size in SIZES if size in profile.block_sizes]
    # The paper times the transfer and the prompt alone: no engine around them.
    bare = profile.with_overhead(0.0)
    spec = model(OPT_13B.model)
    return undo(bare, spec, sizes, TOKENS), undo(copy_by_copy(bare), spec, sizes, TOKENS)


def jobs(setting: Setting) -> dict[str, Job]:
    """Return nothing to replay, but refuse a cost that knows no block sizes before anything else is done."""
    measured(setting)
    return {}


def numbers(setting: Setting, _: Outcomes) -> list[Number]:
    """Return milliseconds, and the shapes of both curves."""
    ours, copies = measured(setting)
    swap = {each.block_size: each.swap_s for each in ours}
    again = {each.block_size: each.recompute_s for each in ours}
    rows = [
        Number(
            "fig19a",
            RECOMPUTE,
            "largest over least",
            (1.0, 1.0 + FLAT),
            "V",
            max(again.values()) / min(again.values()),
            Inside(),
        ),
        Number(
            "fig19a",
            SWAP,
            "block 1 over block 256",
            MS * READ_AT_1_S / 34.5,
            "F",
            swap[min(swap)] / swap[max(swap)],
            Percent(15),
        ),
    ]
    for size in swap:
        paper = MS * READ_AT_1_S if size == 1 else (33.0, 36.0) if size >= 128 else None
        rows.append(Number("fig19a", SWAP, f"block {size}, ms", paper, "F" if paper else "", MS * swap[size]))
    rows += [Number("fig19a", RECOMPUTE, f"block {size}, ms", 40.0, "F", MS * again[size]) for size in again]
    rows += [Number("fig19a", COPIES, f"block {e.block_size}, ms", None, "", MS * e.swap_s) for e in copies]
    return rows


def draw(setting: Setting, _: Outcomes, __: Sequence[Number]) -> Figure:
    """Draw both ways over block sizes, and the ends of the paper's curves."""
    from pagesim.experiments.paper.drawing import legend
    from pagesim.results.drawing import over_sizes, panels
    from pagesim.results.style import BLUE, GREEN, VERMILION

    ours, copies = measured(setting)
    sizes = [each.block_size for each in ours]
    figure, (axes,) = panels(1, 1, 5.4, 3.8)
    for label, values, colour, style in (
        (f"{RECOMPUTE}, ours", [each.recompute_s for each in ours], VERMILION, "^-"),
        (f"{SWAP}, ours", [each.swap_s for each in ours], BLUE, "o-"),
        (f"{COPIES}, from both ends of the paper's curve", [each.swap_s for each in copies], GREEN, "s--"),
    ):
        axes.plot(sizes, [MS * value for value in values], style, color=colour, markersize=4, label=label)
    axes.plot([1, 256], [135, 34.5], "o", color=BLUE, markerfacecolor="white", label="swap, paper (by eye)")
    axes.axhline(40, color=VERMILION, linestyle=":", label="recompute, paper (by eye)")
    over_sizes(axes, sizes, f"to undo a preemption of {TOKENS} tokens (ms)")
    legend(axes)
    return figure


FIGURE = PaperFigure(
    "fig19a",
    "Swapping against recomputing, alone",
    "OPT-13B, a context of 256 tokens out and in again, or computed anew; by `pagesim ablate preemption`, "
    "the engine's overhead left out. Costs are analytic unless a profile is given",
    "transfers and their dependence on the block size",
    jobs,
    numbers,
    draw,
)

"""Figures about cache tiers: hit rates over capacity, and maps of where loading beats recomputation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pagesim.results.drawing import areas, bare, beside, empty, head, panels
from pagesim.results.drawing import ratios as draw_ratios
from pagesim.results.style import BLUE, GREEN, ORANGE, PURPLE, SKY, TIERS, VERMILION

if TYPE_CHECKING:
    import pandas as pd


GIB = 1 << 30

_STYLES = {
    "bound": ("Belady's bound", "black", "--"),
    "belady": ("Belady, caching all", "#8C8C8C", "--"),
    "lru": ("LRU", BLUE, "-"),
    "fifo": ("FIFO", SKY, "-"),
    "lfu": ("LFU", PURPLE, "-"),
    "sieve": ("SIEVE", GREEN, "-"),
    "s3fifo": ("S3-FIFO", ORANGE, "-"),
    "arc": ("ARC", VERMILION, "-"),
    "gdsf": ("GDSF", "#8B4513", "-"),
}


def hit_rate_over_capacity(
    lines: Mapping[str, Mapping[int, float]], *, possible: float, working_set: int, load: str = ""
) -> Figure:
    """Draw hit rates over the capacity of a prefix cache, with one line per eviction policy.

    Args:
        lines: hit rates in percent, by policy name and capacity in bytes.
        possible: hit rate in percent without a capacity limit, drawn as a horizontal line.
        working_set: smallest capacity in bytes that allows all possible hits, marked.
        load: workload, for the line below the title.
    """
    figure = empty(6.0, 4.0)
    axes = figure.add_subplot()
    for name, line in lines.items():
        label, colour, style = _STYLES.get(name, (name, None, "-"))
        axes.plot(
            [size / GIB for size in line], list(line.values()), style, marker="o", markersize=3,
            label=label, color=colour, linewidth=1.4,
        )  # fmt: skip
    axes.axhline(possible, color="black", linewidth=0.6, linestyle=":")
    axes.text(0.01, possible, f" without a limit {possible:.2f} %", transform=axes.get_yaxis_transform(),
              va="bottom", fontsize=8)  # fmt: skip
    axes.axvline(working_set / GIB, color="#8C8C8C", linewidth=0.8, linestyle=":")
    axes.annotate(
        f"working set\n{working_set / GIB:,.0f} GiB" if working_set >= 10 * GIB else "working set",
        (working_set / GIB, 0.02), xycoords=axes.get_xaxis_transform(), xytext=(3, 0),
        textcoords="offset points", fontsize=8, color="#444444",
    )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.tick_params(axis="x", labelsize=8)
    axes.set_ylim(0, 1.12 * possible)
    axes.set_xlabel("capacity (GiB)")
    axes.set_ylabel("hits (% of prompt tokens)")
    bare(axes)
    beside(axes)
    return head(figure, "Prefixes found in a cache, by its eviction policy", load)


def who_evicts_whom(evicted: Mapping[str, npt.NDArray[np.int64]], load: str = "") -> Figure:
    """Draw evictions, with one panel per policy and one point per evicted block.

    A point's coordinates are the requests that evicted and that last used the block. Blocks requested again
    later are orange, and their share is printed above the panel.

    Args:
        evicted: evictions by policy name, ``[evictions, 3]``: the request that evicts, the last one that used
            the block, and the next one that asks for it, or -1.
        load: workload, for the line below the title.
    """
    rows = -(-len(evicted) // 4)
    columns = -(-len(evicted) // rows)
    figure, axes = panels(rows, columns, 2.6, 2.6)
    for each, (name, of) in zip(axes, evicted.items(), strict=False):
        again = of[:, 2] >= 0
        for part, colour in ((~again, "#BBBBBB"), (again, ORANGE)):
            each.plot(of[part, 0], of[part, 1], ",", color=colour, rasterized=True)
        share = f"{100 * again.mean():.0f} % are asked for again" if len(of) else "none"
        each.set_title(f"{_STYLES.get(name, (name,))[0]}\n{share}", fontsize=8)
        each.set_xlabel("request that evicts", fontsize=8)
    for each in axes[::columns]:
        each.set_ylabel("request that used\nthe block last", fontsize=8)
    for each in axes[len(evicted) :]:
        each.set_visible(False)
    return head(figure, "Who evicts whom: a point a block, orange where it is asked for again", load)


def loading_map(
    ratios: Mapping[str, Mapping[str, Sequence[float]]], contexts: Sequence[int], label: str, load: str = ""
) -> Figure:
    """Draw one map per KV source: purple where loading is faster, orange where recomputing is.

    Args:
        ratios: loading time over recomputation time for each context, by source and model.
        contexts: context lengths in tokens.
        label: title, which names the ratio.
        load: the GPU and its concurrent work, for the line below the title.
    """
    rows = max(len(models) for models in ratios.values())
    columns = min(3, len(ratios))
    lines = -(-len(ratios) // columns)
    figure = empty(0.42 * len(contexts) * columns + 1.9, lines * (0.36 * rows + 1.2))
    for place, (name, models) in enumerate(ratios.items(), 1):
        axes = figure.add_subplot(lines, columns, place)
        labels = list(models) if (place - 1) % columns == 0 else [""] * len(models)
        table_of_ratios = [list(values) for values in models.values()]
        draw_ratios(axes, table_of_ratios, labels, [_tokens(tokens) for tokens in contexts])
        axes.set_title(name, fontsize=8)
        if place > len(ratios) - columns:
            axes.set_xlabel("tokens that hit", fontsize=8)
    return head(figure, label, load)


def tiers_over_time(axes: Axes, table: pd.DataFrame, capacity: int | None) -> None:
    """Draw the ledger of one tier over time, in percent of its capacity.

    Args:
        axes: panel to draw on.
        table: rows of `Result.tiers` for one tier.
        capacity: chunks; None for an unlimited tier, whose percentages refer to its peak content.
    """
    entries = [entry for entry in TIERS if entry != "free" or capacity is not None]
    chunks = table[entries].to_numpy(float).T
    scale = capacity or max(1.0, chunks.sum(axis=0).max(initial=1.0))
    areas(axes, table["clock"].to_numpy(), dict(zip(entries, 100 * chunks / scale, strict=True)), TIERS)


def over_tier_sizes(rows: Sequence[Mapping[str, Any]], working_set: float, load: str = "") -> Figure:
    """Draw hit rate, time to first token and throughput over the size of a tier.

    Args:
        rows: one row per size: ``tier_gib``, ``device_gib``, ``hit_pct``, ``bound_pct``, ``ttft_p50_s``,
            ``ttft_p99_s``, ``tokens_per_s``.
        working_set: smallest total GiB of tier and device that allows all possible hits, marked.
        load: workload, for the line below the title.
    """
    figure = empty(9.6, 3.3)
    panels: tuple[tuple[str, dict[str, tuple[str, str]]], ...] = (
        ("% of prompt tokens", {"hit_pct": ("hit", BLUE), "bound_pct": ("the bound", "black")}),
        ("first token (s)", {"ttft_p50_s": ("p50", BLUE), "ttft_p99_s": ("p99", VERMILION)}),
        ("tokens/s", {"tokens_per_s": ("generated", GREEN)}),
    )
    sizes = [row["tier_gib"] for row in rows]
    for axes, (label, lines) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        for name, (said, colour) in lines.items():
            values = [np.nan if row[name] is None else row[name] for row in rows]
            axes.plot(sizes, values, "o-", markersize=3, color=colour, label=said, linewidth=1.2)
        axes.axvline(
            max(0.0, working_set - rows[0]["device_gib"]), color="#8C8C8C", linestyle=":", linewidth=0.8
        )
        axes.set_xscale("symlog", linthresh=16, base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.tick_params(labelsize=7)
        axes.set_xlim(left=-4)
        axes.set_ylim(0, 1.15 * axes.get_ylim()[1])
        axes.set_xlabel("tier (GiB); dotted: with the device the working set", fontsize=7)
        axes.set_ylabel(label, fontsize=8)
        bare(axes)
        axes.legend(frameon=False, fontsize=7)
    return head(figure, "What a larger tier brings", load)


def _tokens(tokens: int) -> str:
    return f"{tokens // 1024}k" if tokens >= 1024 and tokens % 1024 == 0 else str(tokens)

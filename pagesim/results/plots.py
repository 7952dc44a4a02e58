"""Figures: where the memory went, over systems and over time. PNG and SVG, without dates or random ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

from pagesim.accounting.metrics import capacity_in, entries_in
from pagesim.costs.profiles import Profile, predict
from pagesim.errors import PagesimError
from pagesim.results.result import Result
from pagesim.results.style import LINE_COLOURS, PARTS, ink
from pagesim.results.tier_plots import tiers_over_time

__all__ = [
    "COLOURS",
    "LABELS",
    "LINE_COLOURS",
    "memory_bars",
    "memory_over_time",
    "over_block_sizes",
    "predicted_iterations",
    "profile_fit",
    "save",
    "save_comparison_figures",
    "save_run_figures",
    "service_bars",
]

COLOURS = {name: part.colour for name, part in PARTS.items()}
"""By entry of the ledger and category of the paper."""

LABELS = {name: part.label for name, part in PARTS.items()}
"""What figures and pages call the entries of the ledger and the categories of the paper's Fig. 2."""

ITERATION_COLOURS = {"prefill": "#D55E00", "decode": "#0072B2", "mixed": "#009E73", "with swap": "#CC79A7"}


def memory_bars(summaries: Mapping[str, dict[str, Any]], view: str = "strict") -> Figure:
    """Draw where the KV cache went under each policy, as stacked bars, % of capacity, mean over iterations.

    Args:
        summaries: summaries of results by policy.
        view: ``strict``, or ``paper`` for the categories of the PagedAttention paper's Fig. 2.
    """
    figure = _figure(max(5.0, 1.5 * len(summaries) + 3.2), 4.2)
    axes = figure.add_subplot()
    names = list(summaries)
    bottom = np.zeros(len(names))
    means = [summary["memory"][view]["per_iteration"] for summary in summaries.values()]
    for entry in entries_in(summaries.values(), view):
        heights = np.array([mean.get(entry) or 0.0 for mean in means])
        if not heights.any():
            continue
        if view == "paper" and entry == "external":
            label, colour = "external fragmentation & others", COLOURS["external"]
        else:
            label, colour = LABELS[entry], COLOURS[entry]
        axes.bar(names, heights, bottom=bottom, label=label, color=colour, edgecolor="white", linewidth=0.6)
        for x, (height, low) in enumerate(zip(heights, bottom, strict=True)):
            if height >= 4:
                axes.text(
                    x, low + height / 2, f"{height:.1f}", ha="center", va="center", fontsize=8,
                    color=ink(colour),
                )  # fmt: skip
        bottom += heights
    axes.set_ylim(0, 100)
    axes.set_ylabel("KV cache (%)")
    axes.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=8
    )
    return figure


def service_bars(summaries: Mapping[str, dict[str, Any]]) -> Figure:
    """Draw the mean batch and the mean normalized latency of each policy.

    Args:
        summaries: summaries of results by policy.
    """
    figure = _figure(max(6.0, 2.2 * len(summaries)), 3.4)
    names = list(summaries)
    panels = (
        ("requests in a batch, mean", [summaries[name]["batch"]["mean"] or 0.0 for name in names]),
        (
            "s per output token, mean",
            [summaries[name]["normalized_latency"]["mean"] or 0.0 for name in names],
        ),
    )
    for place, (label, values) in enumerate(panels, 1):
        axes = figure.add_subplot(1, 2, place)
        bars = axes.barh(names[::-1], values[::-1], color=COLOURS["used"])
        axes.bar_label(bars, fmt=lambda value: f"{value:.3g}", padding=3, fontsize=8)
        axes.set_xlabel(label)
        axes.margins(x=0.18)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def memory_over_time(result: Result) -> Figure:
    """Draw the ledger, that of each tier, the batch and the queue of one run over time.

    Args:
        result: a run that kept its ``steps``.

    Raises:
        ValueError: it holds no steps.
    """
    kept = result.kept_steps
    if kept is None or not kept.rows:
        raise ValueError("the result holds no steps; replay with steps='stretches'")
    tiers = result.summary["memory"].get("tiers", {}) if result.tiers is not None else {}
    figure = _figure(8.0, 5.4 + 1.7 * len(tiers))
    heights = (3.0, *[1.6] * len(tiers), 1.3)
    top, *middle, bottom = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    for axes, (name, known) in zip(middle, tiers.items(), strict=True):
        assert result.tiers is not None
        tiers_over_time(axes, result.tiers[result.tiers["tier"] == name], known["capacity"])
        axes.set_ylabel(f"{name} (%)")
    rows = kept.thinned(2000)
    clock = rows["clock"].to_numpy()
    percent = 100 / capacity_in(result.summary["memory"])
    entries = [entry for entry in entries_in([result.summary]) if rows[entry].any()]
    top.stackplot(
        clock,
        [rows[entry].to_numpy() * percent for entry in entries],
        labels=[LABELS[entry] for entry in entries],
        colors=[COLOURS[entry] for entry in entries],
        step="post",
        linewidth=0,
    )
    top.set_ylim(0, 100)
    top.set_ylabel("KV cache (%)")
    top.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=8)
    for name, label, colour in (
        ("num_running", "running", LINE_COLOURS[0]),
        ("num_waiting", "waiting", LINE_COLOURS[1]),
        ("num_swapped", "swapped out", LINE_COLOURS[2]),
    ):
        if rows[name].any():
            bottom.step(clock, rows[name], where="post", label=label, color=colour, linewidth=1)
    bottom.set_ylabel("requests")
    bottom.set_xlabel("time (s)")
    bottom.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=8)
    _open(top, *middle, bottom)
    return figure


def profile_fit(profile: Profile) -> Figure:
    """Draw, for each term that was fitted, predicted against measured seconds, held-out points apart.

    Raises:
        PagesimError: the profile holds no measurements.
    """
    if not profile.samples:
        raise PagesimError(
            f"{profile.name} holds no measurements ({profile.kind}): there is nothing to draw it against"
        )
    held_out = np.zeros(len(profile.samples), bool)
    held_out[list(profile.held_out)] = True
    terms = list(dict.fromkeys(sample.term for sample in profile.samples))
    figure = _figure(2.4 * min(5, len(terms)), 2.5 * -(-len(terms) // 5))
    for place, term in enumerate(terms, 1):
        axes = figure.add_subplot(-(-len(terms) // 5), min(5, len(terms)), place)
        of = np.array([sample.term == term for sample in profile.samples])
        measured = np.array([sample.seconds for sample in profile.samples])
        predicted = np.array(
            [
                predict(profile.terms.at(s.term, s.block_size), s) if s.term == term else 0.0
                for s in profile.samples
            ]
        )
        for chosen, colour, label in (
            (of & ~held_out, LINE_COLOURS[5], "fitted"),
            (of & held_out, LINE_COLOURS[1], "held out"),
        ):
            axes.plot(measured[chosen], predicted[chosen], ".", color=colour, label=label, markersize=5)
        _compare(axes, measured[of], predicted[of])
        axes.set_title(term.replace("_", " "), fontsize=9)
        if place == 1:
            axes.legend(frameon=False, fontsize=8)
    return figure


def predicted_iterations(cases: Mapping[str, Mapping[str, Sequence[Any]]]) -> Figure:
    """Draw what iterations were predicted to take against what they took, a panel a case.

    Args:
        cases: by name ``kinds``, ``measured_s`` and ``predicted_s`` of its iterations, ``[I]`` each.
    """
    columns = min(3, len(cases))
    figure = _figure(3.2 * columns, 3.3 * -(-len(cases) // columns))
    for place, (name, case) in enumerate(cases.items(), 1):
        axes = figure.add_subplot(-(-len(cases) // columns), columns, place)
        kinds = np.array(case["kinds"], dtype=object)
        measured, predicted = (np.array(case[each]) for each in ("measured_s", "predicted_s"))
        for kind, colour in ITERATION_COLOURS.items():
            of = kinds == kind
            if of.any():
                axes.plot(measured[of], predicted[of], ".", color=colour, label=kind, markersize=4)
        if len(measured):
            _compare(axes, measured, predicted)
            ends = np.array(axes.get_xlim())
            axes.fill_between(ends, 0.9 * ends, 1.1 * ends, color="black", alpha=0.08, linewidth=0)
        axes.set_title(name, fontsize=9)
        axes.legend(frameon=False, fontsize=8)
    return figure


def over_block_sizes(
    lines: Mapping[str, Mapping[int, float]], label: str, *, marked: int | None = None
) -> Figure:
    """Draw something over block sizes, a line for each name.

    Args:
        lines: by name, by block size, the value.
        label: of the values.
        marked: a block size to mark.
    """
    figure = _figure(5.4, 3.8)
    axes = figure.add_subplot()
    for (name, line), colour in zip(lines.items(), LINE_COLOURS, strict=False):
        axes.plot(list(line), list(line.values()), "o-", label=name, color=colour, markersize=4)
    sizes = sorted({size for line in lines.values() for size in line})
    if marked is not None:
        axes.axvline(marked, color="black", linewidth=0.6, linestyle=":")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("block size (tokens)")
    axes.set_ylabel(label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    return figure


def save_run_figures(result: Result, folder: Path) -> None:
    """Draw a result into a folder: ``memory.png`` and ``.svg``, if it kept its steps."""
    if result.kept_steps is not None and result.kept_steps.rows:
        save(memory_over_time(result), folder / "memory")


def save_comparison_figures(summaries: Mapping[str, dict[str, Any]], folder: Path) -> None:
    """Draw summaries by policy into a folder: ``memory``, ``memory_paper_view`` and ``service``."""
    save(memory_bars(summaries), folder / "memory")
    save(memory_bars(summaries, "paper"), folder / "memory_paper_view")
    save(service_bars(summaries), folder / "service")


DPI = 150
"""Of a PNG."""


def save(figure: Figure, stem: Path) -> None:
    """Write a figure as PNG and SVG, ``stem`` with two suffixes; the same bytes each time."""
    png, svg = (stem.with_name(f"{stem.name}.{suffix}") for suffix in ("png", "svg"))  # stems may have dots
    figure.set_dpi(DPI)
    with (
        mpl.rc_context({"svg.hashsalt": "pagesim", "svg.fonttype": "path"}),
        # No layout but the figure's own, whatever a user's matplotlibrc says.
        mpl.rc_context({"figure.autolayout": False, "figure.constrained_layout.use": False}),
    ):
        if (layout := figure.get_layout_engine()) is not None:
            # Laid out once: matplotlib would do it, and draw for it, once a file.
            layout.execute(figure)
            figure.set_layout_engine(None)
        figure.savefig(png, dpi=DPI, metadata={"Software": None})
        figure.savefig(svg, metadata={"Date": None, "Creator": None})


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _open(*all_axes: Axes) -> None:
    for axes in all_axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0)


def _compare(axes: Axes, measured: Any, predicted: Any) -> None:
    """Give both axes the same range of seconds, three times at least, named as ``200 µs``, and a diagonal."""
    both = np.concatenate([measured, predicted])
    both = both[both > 0]
    least, most = (both.min(), both.max()) if len(both) else (1e-3, 1e-3)
    wider = max(1.2, (3 * least / most) ** 0.5)
    limits = least / wider, most * wider
    decades = np.log10(limits[1] / limits[0])
    subs = (1, 2, 5) if decades < 1.2 else (1, 3) if decades < 2.2 else (1,)
    # Limits first: points that are all 0, as of a term that is lost in the noise, have none on such an axis.
    axes.set(xlim=limits, ylim=limits, xscale="log", yscale="log", box_aspect=1)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=subs, numticks=20))
        axis.set_major_formatter(EngFormatter("s"))
        axis.set_minor_formatter(NullFormatter())
        axis.set_tick_params(labelsize=7)
    axes.plot(limits, limits, color="black", linewidth=0.6)
    axes.set_xlabel("measured", fontsize=8)
    axes.set_ylabel("predicted", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)

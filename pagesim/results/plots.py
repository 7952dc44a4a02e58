"""Figures of memory use, by system and over time, as PNG and SVG without dates or random ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pagesim.accounting.metrics import capacity_in, entries_in
from pagesim.costs.profiles import Profile, predict
from pagesim.errors import PagesimError
from pagesim.results.drawing import (
    SMALL,
    against,
    areas,
    bare,
    beside,
    empty,
    head,
    load_of,
    over_sizes,
    panels,
    save,
    stacks,
)
from pagesim.results.result import Result
from pagesim.results.style import ITERATIONS, LINE_COLOURS, LOADS, PARTS
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
LABELS = {name: part.label for name, part in PARTS.items()}
"""Colours and labels of `PARTS`, for users' own figures."""

VIEWS = {
    "strict": "Where the KV cache goes, mean over iterations",
    "paper": "Where the KV cache goes, in the categories of the PagedAttention paper",
}


def memory_bars(summaries: Mapping[str, dict[str, Any]], view: str = "strict", load: str = "") -> Figure:
    """Draw how each policy used the KV cache, as stacked bars in % of capacity, averaged over iterations.

    Args:
        summaries: summaries of results, by policy.
        view: ``strict``, or ``paper`` for the categories of the PagedAttention paper's Fig. 2.
        load: workload, for the line below the title.
    """
    figure = empty(max(5.0, 1.5 * len(summaries) + 3.2), 4.4)
    axes = figure.add_subplot()
    means = [summary["memory"][view]["per_iteration"] for summary in summaries.values()]
    renamed = {"external": "others"} if view == "paper" else {}
    shares = {
        renamed.get(entry, entry): [mean.get(entry) or 0.0 for mean in means]
        for entry in entries_in(summaries.values(), view)
    }
    stacks(axes, shares, numbers_from=4, upwards=True, thick=0.8)
    axes.set_xticks(range(len(summaries)), list(summaries))
    axes.set_ylim(0, 100)
    axes.set_ylabel("KV cache (%)")
    bare(axes)
    beside(axes, upwards=True)
    return head(figure, VIEWS[view], load)


def service_bars(summaries: Mapping[str, dict[str, Any]], load: str = "") -> Figure:
    """Draw the mean batch size and the mean normalized latency of each policy.

    Args:
        summaries: summaries of results, by policy.
        load: workload, for the line below the title.
    """
    figure = empty(max(6.0, 2.2 * len(summaries)), 3.6)
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
        bars = axes.barh(names[::-1], values[::-1], color=LINE_COLOURS[0])
        axes.bar_label(bars, fmt=lambda value: f"{value:.3g}", padding=3, fontsize=SMALL)
        axes.set_xlabel(label)
        axes.margins(x=0.18)
        bare(axes)
    return head(figure, "How large batches are, and how long requests take", load)


def memory_over_time(result: Result) -> Figure:
    """Draw one run over time: the ledgers of the KV cache and of each tier, the batch and the queue.

    Args:
        result: a run that kept its ``steps``.

    Raises:
        ValueError: the result holds no steps.
    """
    kept = result.kept_steps
    if kept is None or not kept.rows:
        raise ValueError("the result holds no steps; replay with steps='stretches'")
    tiers = result.summary["memory"].get("tiers", {}) if result.tiers is not None else {}
    figure = empty(8.0, 5.6 + 1.7 * len(tiers))
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
    areas(top, clock, {entry: rows[entry].to_numpy() * percent for entry in entries})
    top.set_ylabel("KV cache (%)")
    for name, part in LOADS.items():
        if rows[name].any():
            bottom.step(clock, rows[name], where="post", label=part.label, color=part.colour, linewidth=1)
    bottom.set_ylabel("requests")
    bottom.set_xlabel("time (s)")
    bottom.margins(x=0)
    bare(bottom)
    beside(bottom)
    title = f"Where the KV cache goes over time under {result.scenario.policy}"
    return head(figure, title, load_of(result.scenario))


def profile_fit(profile: Profile) -> Figure:
    """Draw predicted against measured seconds for each fitted term, with held-out points marked.

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
    figure, all_axes = panels(-(-len(terms) // 5), min(5, len(terms)), 2.4, 2.5)
    for term, axes in zip_longest(terms, all_axes):
        if term is None:
            axes.set_axis_off()
            continue
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
        against(axes, measured[of], predicted[of])
        axes.set_title(term.replace("_", " "), fontsize=9)
    all_axes[0].legend(frameon=False, fontsize=SMALL)
    on = f"{profile.model.name}, tp {profile.tp}, KV {profile.kv_dtype}"
    if profile.gpu is not None:
        on += f" on {profile.gpu}"
    return head(figure, f"{profile.name}: seconds as predicted and as measured", on)


def predicted_iterations(cases: Mapping[str, Mapping[str, Sequence[Any]]], load: str = "") -> Figure:
    """Draw predicted against measured iteration times, with one panel per case.

    Args:
        cases: ``kinds``, ``measured_s`` and ``predicted_s`` of each case's iterations, ``[I]`` each, by name.
        load: workload, for the line below the title.
    """
    columns = min(3, len(cases))
    figure, all_axes = panels(-(-len(cases) // columns), columns, 3.2, 3.3)
    for axes in all_axes[len(cases) :]:
        axes.set_axis_off()
    for axes, (name, case) in zip(all_axes, cases.items(), strict=False):
        kinds = np.array(case["kinds"], dtype=object)
        measured, predicted = (np.array(case[each]) for each in ("measured_s", "predicted_s"))
        for kind, part in ITERATIONS.items():
            of = kinds == kind
            if of.any():
                axes.plot(measured[of], predicted[of], ".", color=part.colour, label=part.label, markersize=4)
        if len(measured):
            against(axes, measured, predicted, band=True)
        axes.set_title(name, fontsize=9)
        axes.legend(frameon=False, fontsize=SMALL)
    return head(figure, "Seconds of iterations, as predicted and as measured", load)


def over_block_sizes(
    lines: Mapping[str, Mapping[int, float]], label: str, *, marked: int | None = None, load: str = ""
) -> Figure:
    """Draw a quantity over block sizes, with one line per name.

    Args:
        lines: values by name and block size.
        label: label of the values.
        marked: block size to mark.
        load: workload, for the line below the title.
    """
    figure = empty(5.4, 4.0)
    axes = figure.add_subplot()
    for (name, line), colour in zip(lines.items(), LINE_COLOURS, strict=False):
        axes.plot(list(line), list(line.values()), "o-", label=name, color=colour, markersize=4)
    sizes = sorted({size for line in lines.values() for size in line})
    if marked is not None:
        axes.axvline(marked, color="black", linewidth=0.6, linestyle=":")
    over_sizes(axes, sizes, label)
    axes.legend(frameon=False, fontsize=SMALL)
    return head(figure, "Over block sizes", load)


def save_run_figures(result: Result, folder: Path) -> None:
    """Save a result's figure to a folder as ``memory.png`` and ``.svg``, if it kept its steps."""
    if result.kept_steps is not None and result.kept_steps.rows:
        save(memory_over_time(result), folder / "memory")


def save_comparison_figures(summaries: Mapping[str, dict[str, Any]], folder: Path, load: str = "") -> None:
    """Save figures that compare policies to a folder: ``memory``, ``memory_paper_view`` and ``service``.

    Args:
        summaries: summaries of results, by policy.
        folder: existing folder.
        load: workload, for the lines below the titles.
    """
    save(memory_bars(summaries, load=load), folder / "memory")
    save(memory_bars(summaries, "paper", load), folder / "memory_paper_view")
    save(service_bars(summaries, load), folder / "service")

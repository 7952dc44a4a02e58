"""Figures of a sweep: a metric over an option or another metric, with confidence; and capacity bars."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pagesim.errors import PagesimError
from pagesim.experiments.sweeps.sweep_tables import MARGIN
from pagesim.results.drawing import SMALL, bare, empty, head
from pagesim.results.style import LINE_COLOURS

if TYPE_CHECKING:
    import pandas as pd

HUES = (*LINE_COLOURS, "#000000")

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
"""As many as let a cycle through both lists use every pair with a colour, for many distinct curves."""

MOST_PANELS = 12

UNITS = {
    "rate": "requests/s",
    "normalized_latency": "s/token",
    **dict.fromkeys(("duration", "latency", "ttft", "tpot", "itl", "queueing"), "s"),
    **dict.fromkeys(("memory.strict", "memory.paper"), "% of the KV cache"),
}
"""Units of options and metrics, by prefix of their names."""


def curves(
    means: pd.DataFrame, axes: Sequence[str], *, x: str, y: str, hue: str | None = None, load: str = ""
) -> Figure:
    """Draw a metric's mean with its 95 % confidence interval, with one panel per point of the other axes.

    A curve without x values, because its policy does not support that option, is drawn as a level line.

    Args:
        means: the table of a sweep's points.
        axes: the options that vary.
        x: an option that varies, or a metric.
        y: a metric.
        hue: an option that varies, with one colour per value; None for one curve.
        load: what was served, for the title.

    Raises:
        PagesimError: there is no such option or metric, or there are too many panels.
    """
    check_names(list(means.columns), axes, x=x, y=y, hue=hue)
    means = _with_numbers(means, x)
    others = [name for name in axes if name not in (x, hue, "seed")]
    panels = list(itertools.product(*(_values(means, name) for name in others)))
    if len(panels) > MOST_PANELS:
        raise PagesimError(
            f"the figure has {len(panels)} panels, a point of {', '.join(others)} each; the bound is "
            f"{MOST_PANELS}"
        )
    hues = _values(means, hue) if hue else [None]
    ticks = [] if _numeric(means[x]) else _values(means, x)
    figure = empty(4.4 * len(panels) + 1.6, 4.0)
    places = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for place, panel in zip(places, panels, strict=True):
        rows = means
        for name, value in zip(others, panel, strict=True):
            # A policy without that option is the same at every value, so it belongs in every panel.
            rows = rows[(rows[name].isna() | (rows[name] == value)).to_numpy(bool)]
        place.set_title(
            ", ".join(f"{name} {value}" for name, value in zip(others, panel, strict=True)), fontsize=9
        )
        _panel(place, rows, x, y, hue, hues, ticks)
        if ticks:
            place.set_xticks(range(len(ticks)), [str(value) for value in ticks], rotation=20, ha="right")
        place.set_xlabel(label(x))
        bare(place)
    places[0].set_ylabel(f"{label(y)}\nmean over seeds")
    if hue:
        # A panel may lack a value, so the legend has those of all panels, in the table's order.
        found = {
            text: handle
            for place in places
            for handle, text in zip(*place.get_legend_handles_labels(), strict=True)
        }
        names = [str(value) for value in hues if str(value) in found]
        places[-1].legend(
            [found[name] for name in names], names, title=hue,
            loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=SMALL,
        )  # fmt: skip
    return head(figure, f"{label(y)} over {label(x)}", load)


def check_names(known: Sequence[str], axes: Sequence[str], *, x: str, y: str, hue: str | None) -> None:
    """Check that the options and metrics of a figure exist.

    Args:
        known: the columns of the table of points, including metrics.
        axes: the options that vary.
        x: see `curves`.
        y: see `curves`.
        hue: see `curves`.

    Raises:
        PagesimError: one does not exist; the message names it and lists the valid ones.
    """
    metrics = [name.removesuffix(f".{MARGIN}") for name in known if name.endswith(f".{MARGIN}")]
    varying = [name for name in axes if name != "seed"]
    options = ", ".join(varying) or "it has none"
    if y not in metrics:
        raise PagesimError(f"y is {y!r}; it must be a metric, one of {', '.join(metrics)}")
    if x not in (*varying, *metrics):
        raise PagesimError(f"x is {x!r}; it must be a metric or an option of the grid ({options})")
    if hue is not None and hue not in varying:
        raise PagesimError(f"hue is {hue!r}; it must be an option of the grid ({options})")


def capacity_bars(rates: pd.DataFrame, load: str = "") -> Figure:
    """Draw each policy's highest rate, or concurrency, from a capacity search.

    Args:
        rates: the search's table of rates.
        load: what was served, for the title.
    """
    found = rates.columns[1]
    figure = empty(7.0, 1.5 + 0.42 * len(rates))
    axes = figure.add_subplot()
    heights = rates[found].fillna(0.0).to_numpy(np.float64)[::-1]
    bars = axes.barh(rates["policy"].tolist()[::-1], heights, color=LINE_COLOURS[0])
    texts = [
        f"≥ {rate:.4g}" if verdict.startswith("holds") else f"{rate:.4g}" if rate == rate else verdict
        for rate, verdict in zip(rates[found], rates["verdict"], strict=True)
    ]
    axes.bar_label(bars, texts[::-1], padding=3, fontsize=SMALL)
    unit = "highest rate that keeps the goal (requests/s)"
    axes.set_xlabel(unit if found == "rate" else "most outstanding requests at which the goal is kept")
    axes.margins(x=0.18)
    bare(axes)
    return head(figure, "What each policy sustains", load)


def _panel(
    axes: Axes,
    rows: pd.DataFrame,
    x: str,
    y: str,
    hue: str | None,
    hues: Sequence[Any],
    ticks: Sequence[Any],
) -> None:
    for place, value in enumerate(hues):
        own = rows if hue is None else rows[(rows[hue] == value).fillna(False).to_numpy(bool)]
        style: dict[str, Any] = {"color": HUES[place % len(HUES)], "label": str(value)}
        level = own[own[x].isna()]
        for middle, margin in zip(level[y], level[f"{y}.{MARGIN}"], strict=True):
            axes.axhline(middle, linestyle="--", linewidth=1, **style)
            if margin == margin:
                axes.axhspan(middle - margin, middle + margin, alpha=0.15, linewidth=0, color=style["color"])
        own = own[own[x].notna()]
        if own.empty:
            continue
        at = np.array([float(ticks.index(v) if ticks else v) for v in own[x]])
        rising = np.argsort(at, kind="stable")
        axes.errorbar(
            at[rising],
            own[y].to_numpy(np.float64)[rising],
            yerr=own[f"{y}.{MARGIN}"].to_numpy(np.float64)[rising],
            linestyle="none" if ticks else "-",
            marker=MARKERS[place % len(MARKERS)],
            markersize=4,
            linewidth=1.2,
            capsize=2,
            **style,
        )


def _values(table: pd.DataFrame, name: str) -> list[Any]:
    """Return a column's distinct values, in the table's order."""
    return list(dict.fromkeys(table[name].dropna().tolist()))


def _with_numbers(means: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the table with a column of strings as numbers if all are, such as a prefix's tokens."""
    import pandas as pd

    numbers = pd.to_numeric(means[name], errors="coerce")
    return means if numbers.isna().any() else means.assign(**{name: numbers})


def _numeric(column: pd.Series[Any]) -> bool:
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    return is_numeric_dtype(column) and not is_bool_dtype(column)


def label(name: str) -> str:
    """Return the name of an option or a metric with its unit."""
    unit = next((unit for begin, unit in UNITS.items() if f"{name}.".startswith(f"{begin}.")), None)
    return f"{name} ({unit})" if unit else name

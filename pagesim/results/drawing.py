"""Drawing: building blocks of figures, such as panels, stacked parts, comparisons, ratio maps and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

from pagesim.errors import escaped
from pagesim.results.style import PARTS, PartStyle, ink
from pagesim.setup.system import System

SMALL = 8
"""Font size of all text except titles and axis labels, in points."""

BAND = 0.1
"""Half-width of the grey band around equality, as a fraction of the measured value."""

DPI = 150
"""Resolution of a PNG."""


def empty(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches, with automatic layout."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def panels(rows: int, columns: int, width: float = 4.0, height: float = 3.2) -> tuple[Figure, list[Axes]]:
    """Return a figure with ``rows × columns`` empty panels, each of this size in inches, and the panels."""
    figure = empty(width * columns, height * rows)
    axes = [figure.add_subplot(rows, columns, place) for place in range(1, rows * columns + 1)]
    bare(*axes)
    for each in axes:
        each.tick_params(labelsize=SMALL)
    return figure, axes


def bare(*all_axes: Axes, but: Sequence[str] = ("left", "bottom")) -> None:
    """Hide the lines around panels except those named in ``but``."""
    for axes in all_axes:
        axes.spines[[side for side in ("top", "right", "left", "bottom") if side not in but]].set_visible(
            False
        )


def head(figure: Figure, title: str, load: str = "") -> Figure:
    """Put a title above a figure, with the workload on the line below it, and return the figure."""
    lines = [escaped(each) for each in (title, load) if each]  # both may contain file names
    figure.suptitle("\n".join(lines), fontsize=9)
    return figure


def load_of(system: System, varying: Sequence[str] = ()) -> str:
    """Return the workload and the hardware as ``sharegpt, 2 requests/s, opt-13b on a100-40gb``.

    Args:
        system: a scenario, or only its system.
        varying: options to leave out because the figure shows several of their values.
    """
    given = {
        name: value for name, value in system.model_dump(exclude_none=True).items() if name not in varying
    }
    words = [_name(given["trace"])] if "trace" in given else []
    if "max_concurrency" in given:
        words.append(f"{given['max_concurrency']} requests at a time")
    elif given.get("rate", float("inf")) < float("inf"):
        words.append(f"{given['rate']:g} requests/s")
    if "model" in given:
        words.append(_name(given["model"]))
    if "gpu" in given:
        gpus = given.get("tensor_parallel_size", 1)
        on = f"{gpus} × {given['gpu']}" if gpus > 1 else str(given["gpu"])
        words[-1:] = [f"{words[-1]} on {on}"] if "model" in given else [*words[-1:], on]
    return ", ".join(words)


def _name(given: str) -> str:
    """Return a name, shortening an absolute path to its file name (or the folder of a config.json)."""
    path = Path(given)
    if not path.is_absolute():
        return given
    return path.parent.name if path.name == "config.json" else path.name


def beside(axes: Axes, *, upwards: bool = False, **options: Any) -> None:
    """Put a panel's legend to its right.

    Args:
        axes: panel.
        upwards: whether to list what was drawn first last, as in bars stacked upwards.
        options: further options of the legend.
    """
    handles, labels = axes.get_legend_handles_labels()
    step = -1 if upwards else 1
    axes.legend(
        handles[::step], labels[::step], loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False,
        fontsize=SMALL, **options,
    )  # fmt: skip


def below(figure: Figure, drawn: Mapping[str, Any], columns: int = 5) -> None:
    """Put a legend below a figure, given what was drawn by label."""
    figure.legend(
        list(drawn.values()), list(drawn), loc="outside lower center", ncols=columns, frameon=False,
        fontsize=SMALL,
    )  # fmt: skip


def areas(
    axes: Axes,
    clock: npt.ArrayLike,
    percent: Mapping[str, npt.ArrayLike],
    parts: Mapping[str, PartStyle] = PARTS,
) -> None:
    """Draw parts over time, stacked up to 100 %, with a legend on the right.

    Args:
        axes: panel to draw on.
        clock: seconds, ``[T]``.
        percent: percentages by part, ``[T]`` each.
        parts: styles of the parts.
    """
    axes.stackplot(
        np.asarray(clock),
        [np.asarray(share) for share in percent.values()],
        labels=[parts[name].label for name in percent],
        colors=[parts[name].colour for name in percent],
        step="post",
        linewidth=0,
    )
    axes.set_ylim(0, 100)
    bare(axes)
    axes.margins(x=0)
    beside(axes, upwards=True)


def stacks(
    axes: Axes,
    table: Mapping[str, npt.ArrayLike],
    *,
    numbers_from: float | None = None,
    upwards: bool = False,
    thick: float = 0.75,
) -> dict[str, Any]:
    """Draw bars at positions 0, 1, … made of stacked `PARTS`; return what was drawn, by label.

    Args:
        axes: panel to draw on.
        table: width of each part in each bar, ``[N]``, by part, from left to right or bottom to top. NaN
            counts as 0, and parts that are 0 in every bar are left out.
        numbers_from: minimum width of a part that is labelled with its number; None for no numbers.
        upwards: whether bars are vertical.
        thick: thickness of the bars.
    """
    drawn: dict[str, Any] = {}
    done: npt.NDArray[np.float64] | float = 0.0
    for name, column in table.items():
        widths = np.nan_to_num(np.asarray(column, np.float64))
        if not widths.any():
            continue
        part, places, ends = PARTS[name], range(len(widths)), done + widths
        edge = "#9A9A9A" if part.colour == "#FFFFFF" else "white"
        look: dict[str, Any] = {"label": part.label, "color": part.colour, "edgecolor": edge}
        look["linewidth"] = [0.5 if width > 0 else 0.0 for width in widths]
        if upwards:
            bars = axes.bar(places, widths, thick, bottom=done, **look)
        else:
            bars = axes.barh(places, widths, thick, left=done, **look)
        drawn[part.label] = bars.patches[int(np.argmax(widths > 0))]  # a visible one, for the legend
        for place, width, end in zip(places, widths, ends, strict=True):
            if numbers_from is not None and width >= numbers_from:
                middle = end - width / 2
                x, y = (place, middle) if upwards else (middle, place)
                colour = ink(part.colour)
                axes.text(x, y, f"{width:.1f}", ha="center", va="center", fontsize=SMALL, color=colour)
        done = ends
    return drawn


def equality(axes: Axes, ends: npt.ArrayLike, *, band: bool = False) -> None:
    """Draw the line on which prediction equals measurement, optionally with a 10 % band around it."""
    both = np.asarray(ends)
    if band:
        axes.fill_between(both, (1 - BAND) * both, (1 + BAND) * both, color="black", alpha=0.08, linewidth=0)
    axes.plot(both, both, color="black", linewidth=0.6)


def against(axes: Axes, measured: Any, predicted: Any, *, band: bool = False) -> None:
    """Give both axes the same range of seconds, at least a factor of 3, SI-prefixed ticks and a diagonal."""
    both = np.concatenate([measured, predicted])
    both = both[both > 0]
    least, most = (both.min(), both.max()) if len(both) else (1e-3, 1e-3)
    wider = max(1.2, (3 * least / most) ** 0.5)
    limits = least / wider, most * wider
    decades = np.log10(limits[1] / limits[0])
    subs = (1, 2, 5) if decades < 1.2 else (1, 3) if decades < 2.2 else (1,)
    # Set limits first: if all points are 0, as for a term lost in noise, a log axis cannot infer them.
    axes.set(xlim=limits, ylim=limits, xscale="log", yscale="log", box_aspect=1)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=subs, numticks=20))
        axis.set_major_formatter(EngFormatter("s"))
        axis.set_minor_formatter(NullFormatter())
        axis.set_tick_params(labelsize=7)
    equality(axes, limits, band=band)
    axes.set_xlabel("measured", fontsize=SMALL)
    axes.set_ylabel("predicted", fontsize=SMALL)
    bare(axes)


def over_sizes(axes: Axes, sizes: Sequence[int], label: str) -> None:
    """Set up a panel whose x axis shows block sizes."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(sizes), [str(size) for size in sizes])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("block size (tokens)")
    axes.set_ylabel(label)
    bare(axes)


def ratios(axes: Axes, table: npt.ArrayLike, rows: Sequence[str], columns: Sequence[str]) -> None:
    """Draw a map of ratios: purple where they are below 1, white at 1, orange above.

    Args:
        axes: panel to draw on.
        table: ratios, ``[rows, columns]``.
        rows: row labels.
        columns: column labels.
    """
    values = np.asarray(table, float)
    # Purple and orange are distinguishable with any colour vision.
    axes.imshow(np.log10(values), cmap="PuOr_r", vmin=-1.5, vmax=1.5, aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        colour = "white" if abs(np.log10(value)) > 1 else "black"
        axes.text(column, row, f"{value:.2g}", ha="center", va="center", fontsize=7, color=colour)
    axes.set_xticks(range(len(columns)), list(columns), fontsize=7)
    axes.set_yticks(range(len(rows)), list(rows), fontsize=7)


def save(figure: Figure, stem: Path) -> None:
    """Write a figure reproducibly to ``stem`` plus ``.png`` and ``stem`` plus ``.svg``."""
    png, svg = (stem.with_name(f"{stem.name}.{suffix}") for suffix in ("png", "svg"))  # stems may have dots
    figure.set_dpi(DPI)
    with (
        mpl.rc_context({"svg.hashsalt": "pagesim", "svg.fonttype": "path"}),
        # Use the figure's own layout, whatever a user's matplotlibrc says.
        mpl.rc_context({"figure.autolayout": False, "figure.constrained_layout.use": False}),
    ):
        if (layout := figure.get_layout_engine()) is not None:
            # Lay out only once: matplotlib would repeat it, with an extra draw, for each file.
            layout.execute(figure)
            figure.set_layout_engine(None)
        figure.savefig(png, dpi=DPI, metadata={"Software": None})
        figure.savefig(svg, metadata={"Date": None, "Creator": None})

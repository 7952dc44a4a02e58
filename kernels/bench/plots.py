"""Figures of a bench: bandwidth over block size and over context, and swaps over the size of their pieces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pagesim.kernels.bench.rows import OK, Row

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
"""Okabe and Ito's palette: told apart by colour-blind people."""

DASHES = ("-", "--", ":", "-.")

Lines = dict[Hashable, list[tuple[float, float]]]


def figures(rows: Iterable[Row]) -> dict[str, Figure]:
    """Return the figures that these rows can fill, by name; each line has at least two points."""
    good = [row for row in rows if row["status"] == OK]
    drawn = {
        "decode_over_block_size": _decode(good, "block_size", "tokens a block"),
        "decode_over_context": _decode(good, "context", "tokens of context"),
        "swap_over_piece_size": _swaps(good),
    }
    return {name: figure for name, figure in drawn.items() if figure is not None}


def _decode(rows: list[Row], axis: str, label: str) -> Figure | None:
    """Draw decode ops, a panel for each number of heads."""
    chosen = [
        row
        for row in rows
        if row["bench"] == "attention"
        and row["query"] is None
        and row["splits"] is None
        and row[axis] is not None
    ]
    if axis == "context":
        # One block size and one layout, so that a line is a function of the context.
        paged = [row["block_size"] for row in chosen if row["block_size"] is not None]
        size = 16 if 16 in paged else min(paged, default=None)
        chosen = [row for row in chosen if row["block_size"] in (None, size)]
    others = "batch" if axis == "context" else "batch context"

    def line(row: Row) -> str:
        values = " × ".join(str(row[name]) for name in others.split())
        return f"{row['op']}, {others.replace(' ', ' × ')} {values}"

    def panel(row: Row) -> str:
        heads = f"{row['q_heads']}/{row['kv_heads']} heads of {row['head_size']}"
        return f"{heads}, {row['dtype']}" + (
            f", {row['layout']}" if row["layout"] not in (None, "NHD") else ""
        )

    return _panels(chosen, panel, line, axis, label, "% of the copy bandwidth")


def _swaps(rows: list[Row]) -> Figure | None:
    """Draw swaps, a panel for each direction and number of pieces."""
    chosen = [row for row in rows if row["op"] == "swap" and row["host_blocks"] == "neighbours"]

    def line(row: Row) -> str:
        # Fig. 19a keeps the tokens and varies the block, so there the count follows from the size.
        return str(row["strategy"]) if row["pieces"] > 2 else f"{row['strategy']}, {row['blocks']} blocks"

    def panel(row: Row) -> str:
        return f"{row['direction']}, {row['pieces']} pieces a block"

    return _panels(chosen, panel, line, "piece_bytes", "bytes of a piece", "% of one pinned copy")


def _panels(
    rows: list[Row],
    panel: Callable[[Row], str],
    line: Callable[[Row], str],
    axis: str,
    label: str,
    height: str,
) -> Figure | None:
    """Draw ``fraction`` over a column; None if there is no line."""
    panels: dict[str, Lines] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        panels[panel(row)][line(row)].append((row[axis], 100 * row["fraction"]))
    lines = {
        title: {name: sorted(points) for name, points in content.items() if len({x for x, _ in points}) > 1}
        for title, content in panels.items()
    }
    lines = {title: content for title, content in lines.items() if content}
    if not lines:
        return None
    figure = Figure(figsize=(5.2 * len(lines) + 1, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    for place, (title, content) in enumerate(lines.items(), 1):
        axes = figure.add_subplot(1, len(lines), place)
        _draw(axes, content)
        axes.set_title(title, fontsize=9)
        axes.set_xlabel(label)
        axes.set_ylabel(height)
    return figure


def _draw(axes: Axes, lines: Lines) -> None:
    for place, (name, points) in enumerate(lines.items()):
        axes.plot(
            [x for x, _ in points],
            [y for _, y in points],
            label=str(name),
            color=COLOURS[place % len(COLOURS)],
            linestyle=DASHES[place // len(COLOURS) % len(DASHES)],
            marker="o",
            markersize=3,
        )
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=6, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)

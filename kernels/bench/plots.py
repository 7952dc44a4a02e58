"""Figures of a bench: bandwidth over block size and over context, and swaps over the size of their pieces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import cycle
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pagesim.kernels.bench.rows import OK, Row, is_planned
from pagesim.results.drawing import bare, empty, head
from pagesim.results.style import LINE_COLOURS

DASHES = ("-", "--", ":", "-.")

Points = list[tuple[Any, float]]
"""(place on the axis or None, height)."""

Name = tuple[str, str]
"""What a line is told by: its colour, and how it is dashed."""

Lines = dict[Name, Points]


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
    """Draw decode ops, a panel for each number of heads; what has no block size is a level line over it."""
    chosen = [row for row in rows if row["bench"] == "attention" and row["query"] is None and is_planned(row)]
    paged = {row["block_size"] for row in chosen} - {None}
    if axis == "context" and paged:
        # One block size, so that a line is a function of the context.
        size = 16 if 16 in paged else min(paged)
        chosen = [row for row in chosen if row["block_size"] in (None, size)]
    others = ("batch",) if axis == "context" else ("batch", "context")

    def line(row: Row) -> Name:
        return f"{' × '.join(others)} {' × '.join(str(row[name]) for name in others)}", row["op"]

    def panel(row: Row) -> str:
        # torch's own op has no layout; it is compared with the plain one.
        model = f"{row['q_heads']}/{row['kv_heads']} heads of {row['head_size']}, {row['dtype']}"
        return f"{model}, {row['layout'] or 'NHD'}"

    return _panels(
        chosen,
        panel,
        line,
        axis,
        label,
        "% of the copy bandwidth",
        f"Bandwidth of decode attention over {label}",
    )


def _swaps(rows: list[Row]) -> Figure | None:
    """Draw swaps, a panel for each direction and number of pieces."""
    chosen = [row for row in rows if row["op"] == "swap" and row["host_blocks"] == "neighbours"]

    def line(row: Row) -> Name:
        # Fig. 19a keeps the tokens and varies the block, so there the count follows from the size.
        return row["strategy"], "" if row["pieces"] > 2 else f"{row['blocks']} blocks"

    def panel(row: Row) -> str:
        return f"{row['direction']}, {row['pieces']} pieces a block"

    return _panels(
        chosen,
        panel,
        line,
        "piece_bytes",
        "bytes of a piece",
        "% of one pinned copy",
        "Bandwidth of swaps over the size of their pieces",
    )


def _panels(
    rows: list[Row],
    panel: Callable[[Row], str],
    line: Callable[[Row], Name],
    axis: str,
    label: str,
    height: str,
    title_of_all: str,
) -> Figure | None:
    """Draw ``fraction`` over a column, and what was measured on; None if no line has two points."""
    panels: dict[str, Lines] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        panels[panel(row)][line(row)].append((row[axis], 100 * row["fraction"]))
    panels = {title: lines for title, lines in panels.items() if any(map(_is_line, lines.values()))}
    if not panels:
        return None
    figure = empty(5.2 * len(panels) + 1, 6.4)
    for place, (title, lines) in enumerate(panels.items(), 1):
        axes = figure.add_subplot(1, len(panels), place)
        _draw(axes, lines)
        axes.set_title(title, fontsize=9)
        axes.set_xlabel(label)
        axes.set_ylabel(height)
    devices = dict.fromkeys(str(row["machine"].get("device_name", row["machine"]["device"])) for row in rows)
    return head(figure, title_of_all, ", ".join(devices))


def _is_line(points: Points) -> bool:
    return len({x for x, _ in points}) > 1


def _draw(axes: Axes, lines: Lines) -> None:
    """Draw what is a line as one, and what has no place on the axis as a level."""
    drawn = {name: points for name, points in lines.items() if _is_line(points) or points[0][0] is None}
    colours = dict(zip(dict.fromkeys(colour for colour, _ in drawn), cycle(LINE_COLOURS), strict=False))
    dashes = dict(zip(dict.fromkeys(dash for _, dash in drawn), cycle(DASHES), strict=False))
    for (colour, dash), points in drawn.items():
        style: dict[str, Any] = {"color": colours[colour], "linestyle": dashes[dash]}
        style["label"] = ", ".join(filter(None, (dash, colour)))
        if points[0][0] is None:
            axes.axhline(points[0][1], linewidth=1, **style)
        else:
            axes.plot(*zip(*sorted(points), strict=True), marker="o", markersize=3, **style)
    places = sorted({x for points in drawn.values() for x, _ in points if x is not None})
    axes.set_xscale("log", base=2)
    axes.set_xticks(places, [_short(place) for place in places], fontsize=7)
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=6, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)
    bare(axes)


def _short(number: float) -> str:
    """Return a power of two in short: 64k, 1M."""
    for unit, name in ((1 << 20, "M"), (1 << 10, "k")):
        if number >= unit:
            return f"{number / unit:.4g}{name}"
    return f"{number:g}"

"""Figures of a bench: bandwidth by block size and context, and swaps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from pagesim.kernels.bench.rows import OK, Row, is_plain

DASHES = ("-", "--", ":", "-.")

Line = tuple[Any, ...]


def save_figures(rows: Iterable[Row], folder: Path, colours: Sequence[str]) -> list[str]:
    """Draw all figures for which there are rows, as PNG and CSV, and return their names.

    Args:
        rows: rows of a bench.
        folder: output folder.
        colours: colours of the lines, in order.
    """
    import pandas as pd
    from matplotlib.figure import Figure

    good = [row for row in rows if row["status"] == OK]
    decode = [row for row in good if row["op"].endswith("-decode") and row["kv_heads"] and is_plain(row)]
    decode += [row for row in good if row["op"] in ("paged-decode-v1", "paged-decode-v2")]
    swaps = [row for row in good if row["op"] == "swap" and row["host_blocks"] == "neighbours"]
    wanted = {
        "decode_over_block_size": (
            decode,
            "block_size",
            ("op", "batch", "context", "q_heads", "kv_heads", "dtype"),
        ),
        "decode_over_context": (
            decode,
            "context",
            ("op", "batch", "block_size", "q_heads", "kv_heads", "dtype"),
        ),
        "replayed_batches": ([row for row in good if row["op"] == "replayed"], "number", ("op", "run")),
        "swap_over_piece_size": (swaps, "piece_bytes", ("strategy", "direction", "pieces", "blocks")),
    }
    drawn = []
    for name, (chosen, axis, columns) in wanted.items():
        lines = _lines(chosen, axis, columns)
        if not lines:
            continue
        table = pd.DataFrame({" ".join(map(str, line)): of for line, of in lines.items()}).sort_index()
        table.to_csv(folder / f"{name}.csv", index_label=axis)
        dashes = {line[0]: dash for line, dash in zip(lines, cycle(DASHES), strict=False)}
        figure = Figure()
        table.plot(
            ax=figure.subplots(),
            color=list(islice(cycle(colours), len(lines))),
            style=[dashes[line[0]] for line in lines],
            logx=axis != "number",
            xlabel="batch of the replay, in order of time" if axis == "number" else axis,
            ylabel="% of one pinned copy" if chosen is swaps else "% of the copy bandwidth",
        )
        figure.savefig(folder / f"{name}.png")
        drawn.append(name)
    return drawn


def _lines(rows: Sequence[Row], axis: str, columns: Sequence[str]) -> dict[Line, dict[Any, float]]:
    """Return percent of the reference by axis value, for each combination of columns with at least two."""
    found: dict[Line, dict[Any, float]] = {}
    for row in rows:
        if row[axis] is not None:
            line = tuple("-" if row[name] is None else row[name] for name in columns)
            found.setdefault(line, {})[row[axis]] = 100 * row["fraction"]
    return {line: places for line, places in found.items() if len(places) > 1}

"""Figures of a bench, by ``triton.testing.perf_report``: bandwidth over block size and context, and swaps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from pagesim.kernels.bench.rows import OK, Row, is_plain
from pagesim.kernels.requirements import installed

DASHES = ("-", "--", ":", "-.")

Line = tuple[Any, ...]


def save_figures(rows: Iterable[Row], folder: Path, colours: Sequence[str]) -> list[str]:
    """Draw the figures that rows can fill, as PNG and CSV, and return their names.

    Args:
        rows: of a bench.
        folder: where they go.
        colours: of lines, in order.

    Without triton there are none.
    """
    if not installed("triton"):
        return []
    from triton.testing import Benchmark, perf_report

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
        places = sorted({place for line in lines.values() for place in line})
        kinds = {line[0]: dash for line, dash in zip(lines, cycle(DASHES), strict=False)}

        def height(x: Any, line: Line, lines: dict[Line, dict[Any, float]] = lines) -> float:
            return lines[line].get(x, float("nan"))

        report = Benchmark(
            x_names=["x"],
            x_vals=places,
            line_arg="line",
            line_vals=list(lines),
            line_names=[" ".join(map(str, line)) for line in lines],
            styles=[(each, kinds[line[0]]) for line, each in zip(lines, cycle(colours), strict=False)],
            xlabel="batch of the replay, in order of time" if axis == "number" else axis,
            ylabel="% of one pinned copy" if chosen is swaps else "% of the copy bandwidth",
            x_log=axis != "number",
            plot_name=name,
            args={},
        )
        perf_report(report)(height).run(save_path=str(folder))
        drawn.append(name)
    return drawn


def _lines(rows: Sequence[Row], axis: str, columns: Sequence[str]) -> dict[Line, dict[Any, float]]:
    """Return percent of the reference by place, for every combination of columns that has two places."""
    found: dict[Line, dict[Any, float]] = {}
    for row in rows:
        if row[axis] is not None:
            line = tuple("-" if row[name] is None else row[name] for name in columns)
            found.setdefault(line, {})[row[axis]] = 100 * row["fraction"]
    return {line: places for line, places in found.items() if len(places) > 1}

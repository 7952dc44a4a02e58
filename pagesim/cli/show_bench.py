"""Terminal output of benchmarks: tables, and comparisons with other libraries."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from pagesim.cli import show
from pagesim.cli.printing import put_table
from pagesim.kernels.bench.compare import FAR_BEHIND, compare
from pagesim.kernels.bench.rows import BENCHES, OK, Row
from pagesim.kernels.bench.run import Outcome

TITLES = {
    "attention": "Attention",
    "swap": "Swaps",
    "copy": "Copies",
    "gemm": "Matrix products",
}


def tables(rows: list[Row]) -> None:
    """Print one table per benchmark, and what could not be measured."""
    for bench in BENCHES:
        mine = [row for row in rows if row["bench"] == bench]
        good = [row for row in mine if row["status"] == OK]
        if good:
            _put(bench, good)
        _say_failures([row for row in mine if row["status"] != OK])


def beside_peers(rows: list[Row]) -> None:
    """Print the time of our kernel next to the fastest other op of each shape."""
    found = compare(rows)
    if not found:
        return
    put_table(
        "Beside the best other op",
        ("", "µs", "best other", "µs", "ratio"),
        [
            (
                " ".join([row["op"], *filter(None, _parts(row).values())]),
                _us(row["median_s"]),
                best["op"],
                _us(best["median_s"]),
                f"{ratio:.2f}" + (" BEHIND" if ratio > FAR_BEHIND else ""),
            )
            for row, best, ratio in found
        ],
        wraps=True,
    )


def ending(outcome: Outcome, out: Path | None) -> None:
    """Print what was measured now, what earlier, and what is left."""
    before = len(outcome.rows) - outcome.measured
    said = [f"{outcome.measured} points measured"]
    if before:
        said.append(f"{before} were stored already")
    if outcome.left:
        said.append(f"{outcome.left} are left, the time was up: the same command goes on with them")
    show.say(", ".join(said))
    if outcome.rows:
        show.say_if_cpu(outcome.rows[0]["machine"]["device"])
    show.stored(out)


def _put(bench: str, rows: list[Row]) -> None:
    """Print a table of measurements; what all rows have in common is in its title."""
    parts = [_parts(row) for row in rows]
    common = {
        name: texts.pop()
        for name in _SHARED
        if len(texts := {part[name] for part in parts if part[name]}) == 1 and len(rows) > 1
    }
    products = any(row["of_peak"] is not None for row in rows)
    cells = []
    for row, part in zip(rows, parts, strict=True):
        own = ", ".join(text for name, text in part.items() if text and name not in common)
        cells.append(
            (
                f"{row['op']} {own}",
                _us(row["median_s"]),
                f"{(row['p80_s'] - row['p20_s']) / 2 / row['median_s']:.0%}",
                _rate(row["gb_per_s"]),
                f"{row['fraction']:.1%}",
                f"{row['noise']:.1%}",
                *[_of_peak(row)] * products,
            )
        )
    heads = ["", "µs", "±", "GB/s", "of link" if bench == "swap" else "of copy", "noise"]
    put_table(
        ", ".join([TITLES[bench], *common.values()]), [*heads, *["of peak"] * products], cells, wraps=True
    )


_SHARED = ("heads", "head_size", "dtype", "layout", "block_size", "direction")
"""Parameters that are said once where all rows that have them agree."""


def _parts(row: Row) -> dict[str, str]:
    """Return a row's parameters as a short text."""
    return {
        "shape": _times(row, "batch", "context"),
        "query": _part(row, "query", "query {}"),
        "tokens": "1 token" if row["tokens"] == 1 else _part(row, "tokens", "{} tokens"),
        "product": _times(row, "m", "n", "k"),
        "heads": f"{row['q_heads'] or ''}/{row['kv_heads']} heads".lstrip("/") if row["kv_heads"] else "",
        "head_size": _part(row, "head_size", "D {}"),
        "dtype": _part(row, "dtype", "{}"),
        "layout": _part(row, "layout", "{}"),
        "block_size": _part(row, "block_size", "block {}"),
        "splits": _part(row, "splits", "{} splits"),
        "cores": _part(row, "cores", "{} cores"),
        "strategy": _part(row, "strategy", "{}"),
        "direction": _part(row, "direction", "{}"),
        "moved": _moved(row),
        "host_blocks": "scattered" if row["host_blocks"] == "scattered" else "",
    }


def _of_peak(row: Row) -> str:
    return "" if row["of_peak"] is None else f"{row['of_peak']:.1%}"


def _say_failures(rows: list[Row]) -> None:
    reasons = Counter((row["op"], row["status"], row["error"]) for row in rows)
    for (op, status, error), count in reasons.items():
        points = "1 point" if count == 1 else f"{count} points"
        show.say(f"{op}: {status} ({points}): {error}")


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:,.4g}" if seconds < 1e-3 else f"{seconds * 1e6:,.0f}"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" if value >= 0.01 else f"{value:.4f}"


def _times(row: Row, *names: str) -> str:
    return " × ".join(str(row[name]) for name in names) if row[names[0]] is not None else ""


def _part(row: Row, name: str, text: str) -> str:
    return text.format(row[name]) if row[name] is not None else ""


def _moved(row: Row) -> str:
    if row["piece_bytes"] is None:
        return ""
    size = _bytes(row["piece_bytes"])
    return size if row["blocks"] is None else f"{row['blocks']} × {row['pieces']} × {size}"


def _bytes(size: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.4g} {name}"
    return f"{size} B"

"""What a person sees of a bench: a progress bar, tables, and what became of the promises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from pagesim.cli import show
from pagesim.kernels.bench.rows import BENCHES, OK, Row
from pagesim.kernels.bench.run import Outcome, Watch
from pagesim.kernels.bench.verdict import verdict

TITLES = {
    "attention": "Attention",
    "swap": "Swaps",
    "copy": "Copies within the device",
    "gemm": "Matrix products",
}
OF_WHAT = {"device-copy": "of copy", "pinned-copy-out": "of pinned copy", "pinned-copy-in": "of pinned copy"}


@contextmanager
def progress() -> Iterator[Watch | None]:
    """Show a bar on a terminal; elsewhere nothing."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def watch(over: int, total: int, point: str) -> None:
            bar.update(task, completed=over, total=total, description=point)

        yield watch


def tables(rows: list[Row]) -> None:
    """Print a table a bench, and what could not be measured."""
    console = Console()
    for bench in BENCHES:
        mine = [row for row in rows if row["bench"] == bench]
        good = [row for row in mine if row["status"] == OK]
        if good:
            console.print(_table(TITLES[bench], good), highlight=False)
        _say_failures([row for row in mine if row["status"] != OK])


def promises(rows: list[Row], device: str) -> None:
    """Print what is promised and what was measured; on a CPU nothing is."""
    if device != "cuda":
        show.say("What is promised is promised on a GPU: pagesim bench all --device cuda --out DIR")
        return
    table = Table(title="Promises", title_justify="left", box=SIMPLE_HEAD, title_style="bold")
    for name in ("", "needed", "measured", ""):
        table.add_column(name)
    for bar in verdict(rows):
        table.add_row(
            bar.promise, bar.needed, bar.measured, {True: "kept", False: "MISSED", None: "–"}[bar.kept]
        )
    Console().print(table, highlight=False)


def ending(outcome: Outcome, out: Path | None) -> None:
    """Say what was measured now, what before, and what is left."""
    before = len(outcome.rows) - outcome.measured
    said = [f"{outcome.measured} points measured"]
    if before:
        said.append(f"{before} were stored already")
    if outcome.left:
        said.append(f"{outcome.left} are left, the time was up: the same command goes on with them")
    show.say(", ".join(said))
    if outcome.rows and outcome.rows[0]["machine"]["device"] == "cpu":
        show.say("These are times of the reference path on a CPU: they say nothing of the kernels.")
    show.stored(out)


def put_figures(rows: list[Row], out: Path) -> None:
    """Draw what the rows can fill into the bench's folder."""
    from pagesim.kernels.bench.plots import figures

    for name, figure in figures(rows).items():
        show.put_figure(figure, out, name)


def shape(row: Row) -> str:
    """Return a row's parameters in few words."""
    parts = [
        _times(row, "batch", "context"),
        _part(row, "query", "query {}"),
        _part(row, "tokens", "{} tokens"),
        _times(row, "m", "n", "k"),
        f"{row['q_heads']}/{row['kv_heads']} heads" if row["q_heads"] else _part(row, "kv_heads", "{} heads"),
        _part(row, "head_size", "D {}"),
        _part(row, "dtype", "{}"),
        _part(row, "layout", "{}"),
        _part(row, "block_size", "block {}"),
        _part(row, "splits", "{} splits"),
        _part(row, "strategy", "{}"),
        _part(row, "direction", "{}"),
        _swapped(row),
        "scattered" if row["host_blocks"] == "scattered" else "",
    ]
    return ", ".join(part for part in parts if part)


def _table(title: str, rows: list[Row]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, title_style="bold")
    table.add_column("op", no_wrap=True)
    table.add_column("of")
    products = rows[0]["bench"] == "gemm"
    for name in ("µs", "p20–p80", "GB/s", OF_WHAT[rows[0]["reference"]], "noise", *["TFLOP/s"] * products):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        slower = f", decode {row['slowdown']:.2f}× as long" if row["slowdown"] else ""
        table.add_row(
            row["op"],
            shape(row) + slower,
            _us(row["median_s"]),
            f"{_us(row['p20_s'])}–{_us(row['p80_s'])}",
            f"{row['gb_per_s']:,.4g}",
            f"{row['fraction']:.1%}",
            f"{row['noise']:.1%}",
            *[f"{row['tflop_per_s']:,.4g}"] * products,
        )
    return table


def _say_failures(rows: list[Row]) -> None:
    reasons = Counter((row["op"], row["status"], row["error"]) for row in rows)
    for (op, status, error), count in reasons.items():
        points = "1 point" if count == 1 else f"{count} points"
        show.say(f"{op}: {status} ({points}): {error}")


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:,.4g}" if seconds < 1e-3 else f"{seconds * 1e6:,.0f}"


def _times(row: Row, *names: str) -> str:
    return " × ".join(str(row[name]) for name in names) if row[names[0]] is not None else ""


def _part(row: Row, name: str, text: str) -> str:
    return text.format(row[name]) if row[name] is not None else ""


def _swapped(row: Row) -> str:
    if row["piece_bytes"] is None:
        return ""
    size = _bytes(row["piece_bytes"])
    return size if row["blocks"] is None else f"{row['blocks']} × {row['pieces']} × {size}"


def _bytes(size: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.4g} {name}"
    return f"{size} B"

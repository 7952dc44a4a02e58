"""``pagesim golden``: compare pagesim's decisions with those of the real engines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pagesim.errors import PagesimError

if TYPE_CHECKING:
    from pagesim.experiments.golden import LogComparison

FOLDER = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="Folder of the manifests (*.toml) that name the logs.")
]
ONLY = Annotated[list[str] | None, typer.Option(metavar="NAME", help="Replay only this log. Repeatable.")]
FAST_FORWARD = Annotated[
    bool | None,
    typer.Option(help="Replay only with fast-forward, or only without. Defaults to both."),
]


def command(
    folder: FOLDER = Path("tests/golden"),
    only: ONLY = None,
    fast_forward: FAST_FORWARD = None,
) -> None:
    """Replay the golden logs and compare every iteration.

    Every request is compared with the logs, too.

    A log is what a real engine decided, iteration by iteration. Each is replayed with fast-forward and
    iteration by iteration; integers must be equal and clocks within 1e-9 s. The exit code is 1 if any log
    differs; its first difference is printed. A log whose files are absent is named and skipped.

    Example: pagesim golden tests/golden --only v0_recompute
    """
    from pagesim.experiments.golden import compare_log, read_manifests

    logs = read_manifests(folder)
    names = [log.name for log in logs]
    if unknown := [name for name in only or () if name not in names]:
        raise PagesimError(f"only is {unknown[0]!r}; the logs of {folder} are {', '.join(names)}")
    chosen = [log for log in logs if not only or log.name in only]
    width = max(len(log.name) for log in chosen)
    engine_width = max(len(log.engine) for log in chosen)
    ways = (False, True) if fast_forward is None else (not fast_forward,)
    differ = absent = 0
    for log in chosen:
        begin = f"{log.name:{width}}  {log.engine:{engine_width}}"
        if log.missing is not None:
            typer.echo(f"{begin}  absent: there is no {log.missing.name}")
            absent += 1
            continue
        found = [compare_log(log, stepping=stepping) for stepping in ways]
        wrong = next((each for each in found if each.difference is not None), None)
        verdict = "equal" if wrong is None else "differs"
        typer.echo(f"{begin}  {verdict:7}  {_counts(found[0])}  {_seconds(found)}")
        if wrong is not None:
            typer.echo(f"{_way(wrong)}: {wrong.difference}")
            differ += 1
    equal = len(chosen) - differ - absent
    typer.echo(f"{equal} equal, {differ} different, {absent} absent")
    if differ:
        raise typer.Exit(1)


def _counts(found: LogComparison) -> str:
    unit = {"steps": "iterations", "batches": "batches   ", "requests": "requests"}
    return "  ".join(f"{rows:>6,} {unit.get(table, table)}" for table, rows in found.rows.items())


def _seconds(found: list[LogComparison]) -> str:
    return ", ".join(f"{each.wall_s:.2f} s {_way(each)}" for each in found)


def _way(found: LogComparison) -> str:
    return "stepping" if found.stepping else "fast-forward"

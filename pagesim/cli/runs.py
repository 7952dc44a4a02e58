"""Shared by commands of many runs: their flags, progress, notes and table cells."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, TypeVar

import typer

from pagesim.cli import show

SEEDS = Annotated[
    int | None, typer.Option(help="Number of runs at each point, with seed, seed + 1 and so on. [default: 1]")
]
JOBS = Annotated[int | None, typer.Option(help="Number of parallel runs. Defaults to one per core.")]
EXECUTOR = Annotated[str, typer.Option(help="Executor: this machine or a Ray cluster. [local|ray]")]
ADDRESS = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Address of the Ray cluster.")]

MOST_NOTES = 6
_NUMBER = re.compile(r"\d[\d.,]*")

T = TypeVar("T")


def counted(label: str, runs: Iterable[T], total: int) -> Iterator[T]:
    """Yield the results of runs as they finish, with a progress bar."""
    with show.bar(label) as progress:
        if progress is not None:
            progress(0, total)
        for over, run in enumerate(runs, 1):
            yield run
            if progress is not None:
                progress(over, total)


def say_notes(notes: Iterable[str]) -> None:
    """Print notes to standard error, each once, and of many only the first.

    Of notes that differ only in numbers, such as those on several rates, one is printed.
    """
    alike: dict[str, list[str]] = {}
    for note in dict.fromkeys(note for run in notes for note in run.splitlines()):
        alike.setdefault(_NUMBER.sub("#", note), []).append(note)
    found = [
        first + (f" (and {len(others)} more with other numbers)" if others else "")
        for first, *others in alike.values()
    ]
    more = len(found) - MOST_NOTES
    rest = (f"and {more} notes more, of other runs",) if more > 0 else ()
    show.say_notes((*found[:MOST_NOTES], *rest))


def all_rejected(summaries: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether no run served any request; if so, first print why to standard error."""
    runs = list(summaries)
    if not all(run["requests"]["rejected"] == run["requests"]["total"] for run in runs):
        return False
    why = "; ".join(dict.fromkeys(sentence for run in runs for sentence in run["rejections"]))
    total = runs[0]["requests"]["total"]
    show.complain(f"pagesim: {total} of {total} requests were rejected: {why}")
    return True


def number(value: float, margin: float = float("nan")) -> str:
    """Format a number for a table, with its margin if given; NaN is a dash."""
    if value != value:
        return "–"
    return f"{value:.4g}" if margin != margin else f"{value:.4g} ± {margin:.2g}"

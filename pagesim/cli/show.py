"""What a person sees in the terminal: notes, sentences, figures and files that were written."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from pagesim.cli.printing import terminal
from pagesim.errors import PagesimError, escaped
from pagesim.setup.files import check_file, put, put_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def as_json(value: Any) -> None:
    """Print JSON to standard output and nothing else."""
    from pagesim.results.result import to_json

    sys.stdout.write(to_json(value))


def say(sentence: str) -> None:
    """Print a sentence as it is, but for what would command the terminal: it may hold names from files."""
    terminal().print(escaped(sentence), highlight=False, markup=False, soft_wrap=True)


def say_if_cpu(device: str) -> None:
    """Say of times that were measured on a CPU that they are none of the kernels."""
    if device == "cpu":
        say("These are times of the reference path on a CPU: they say nothing of the kernels.")


def complain(sentence: str, style: str | None = None) -> None:
    """Print a sentence beside the output."""
    terminal(beside=True).print(escaped(sentence), style=style, highlight=False, markup=False, soft_wrap=True)


def say_notes(notes: Iterable[str]) -> None:
    """Say, beside the output, what was noticed or assumed: each once."""
    for note in dict.fromkeys(notes):
        complain(f"note: {note}", "dim")


def stored(out: Path | None) -> None:
    """Say where the result is."""
    if out is not None:
        say(f"stored in {out}")


def wrote(files: Iterable[Path], *, beside: bool = False) -> None:
    """Say which files were written; ``beside`` the output where that is JSON."""
    if sentence := " and ".join(map(str, files)):
        (complain if beside else say)(f"wrote {sentence}")


Bar = Callable[..., None]
"""What is told of progress: how many are over, of how many, and what it is about, which may be left out."""


@contextmanager
def bar(label: str = "") -> Iterator[Bar | None]:
    """Show a bar, with the time that the rest still takes, on a terminal; elsewhere nothing."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = terminal(beside=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # Runs take seconds to minutes each: the estimate looks back on more than rich's half minute.
    with Progress(*columns, console=console, transient=True, speed_estimate_period=600) as progress:
        task = progress.add_task(label, total=None, start=False)

        def update(over: int, total: int, about: str = label) -> None:
            if not progress.tasks[0].started:
                # What was over before says nothing of how fast the others are.
                progress.reset(task, completed=over, total=total)
            progress.update(task, completed=over, total=total, description=escaped(about))

        yield update


@contextmanager
def doing(first: str) -> Iterator[Callable[[str], None]]:
    """Say on a terminal what is being done, while it lasts; yield what is told of each further step."""
    console = terminal(beside=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status(first) as status:
        yield lambda step: status.update(escaped(step))


def make_folder(folder: Path) -> None:
    """Make a folder, which may be there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PagesimError(f"{folder}: cannot be written ({error.strerror})") from None


def put_figure(figure: Figure, folder: Path, name: str, force: bool | None = None) -> list[Path]:
    """Write a figure into a folder, which need not be there yet; return its files, each written whole."""
    from pagesim.results.plots import save

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".pagesim.", dir=folder) as drafts:
            save(figure, Path(drafts) / name)
            made = sorted(Path(drafts).iterdir())
            for draft in made:
                check_file(folder / draft.name, "figure", force=force)
            for draft in made:
                put(folder / draft.name, partial(_copy, draft))
            return [folder / draft.name for draft in made]
    except OSError as error:
        raise PagesimError(f"{folder}: cannot be written ({error.strerror})") from None


def put_study(
    out: Path | None,
    stem: str,
    rows: Iterable[Mapping[str, Any]],
    figure: Callable[[], Figure],
    **columns: Any,
) -> None:
    """Store what a study found, if it has a folder: a row each in a CSV, and the figure beside it.

    Args:
        out: the folder.
        stem: what the files are called.
        rows: of the table.
        figure: draws it.
        columns: further ones, the same in every row.
    """
    if out is None:
        return
    import pandas as pd

    put_figure(figure(), out, stem)
    write_text(out / f"{stem}.csv", pd.DataFrame(list(rows)).assign(**columns).to_csv(index=False))


def _copy(draft: Path, out: BinaryIO) -> None:
    out.write(draft.read_bytes())


def write_text(file: Path, text: str) -> None:
    """Write a table, all of it or nothing, in the place of no file but one that begins as it does."""
    check_file(file, "table", begins=text.partition("\n")[0])
    put_text(file, text)

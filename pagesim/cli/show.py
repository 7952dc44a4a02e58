"""Terminal output: notes, sentences, figures and the names of written files."""

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
    """Print a sentence with control characters escaped, since it may hold names from files."""
    terminal().print(escaped(sentence), highlight=False, markup=False, soft_wrap=True)


def say_if_cpu(device: str) -> None:
    """Warn that times measured on a CPU are not the kernels' times."""
    if device == "cpu":
        say("These are times of the reference path on a CPU: they say nothing of the kernels.")


def complain(sentence: str, style: str | None = None) -> None:
    """Print a sentence to standard error."""
    terminal(beside=True).print(escaped(sentence), style=style, highlight=False, markup=False, soft_wrap=True)


def say_notes(notes: Iterable[str]) -> None:
    """Print notes to standard error, each once."""
    for note in dict.fromkeys(notes):
        complain(f"note: {note}", "dim")


def stored(out: Path | None) -> None:
    """Print where the result is stored."""
    if out is not None:
        say(f"stored in {out}")


def wrote(files: Iterable[Path], *, beside: bool = False) -> None:
    """Print the names of written files; to standard error (``beside``) if the output is JSON."""
    if sentence := " and ".join(map(str, files)):
        (complain if beside else say)(f"wrote {sentence}")


Bar = Callable[..., None]
"""What is told of progress: how many are over, of how many, and what it is about, which may be left out."""


@contextmanager
def bar(label: str = "") -> Iterator[Bar | None]:
    """Show a progress bar with the remaining time; nothing unless on a terminal."""
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
    """Show the current step on a terminal; yield a callback for further steps."""
    console = terminal(beside=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status(first) as status:
        yield lambda step: status.update(escaped(step))


def make_folder(folder: Path) -> None:
    """Create a folder unless it exists."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PagesimError(f"{folder}: cannot be written ({error.strerror})") from None


def put_figure(figure: Figure, folder: Path, name: str, force: bool | None = None) -> list[Path]:
    """Write a figure into a folder, creating it if needed; return its files, each written atomically."""
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
    """Store a study's rows as CSV together with its figure, if a folder is given.

    Args:
        out: folder; None stores nothing.
        stem: file name without its extension.
        rows: rows of the table.
        figure: draws it.
        columns: further columns, with the same value in every row.
    """
    if out is None:
        return
    import pandas as pd

    put_figure(figure(), out, stem)
    write_text(out / f"{stem}.csv", pd.DataFrame(list(rows)).assign(**columns).to_csv(index=False))


def _copy(draft: Path, out: BinaryIO) -> None:
    out.write(draft.read_bytes())


def write_text(file: Path, text: str) -> None:
    """Write a table atomically; overwrite only a file that begins the same way."""
    check_file(file, "table", begins=text.partition("\n")[0])
    put_text(file, text)

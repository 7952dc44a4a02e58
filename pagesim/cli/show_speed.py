"""What a person sees of the simulator's own speed in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from pagesim.cli.tables import put_table
from pagesim.errors import PagesimError
from pagesim.reading import parse_json
from pagesim.speed import Point, Row, base_row


@contextmanager
def progress(points: int) -> Iterator[Callable[[Point], None]]:
    """Show how many points are measured and which is at hand."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    console = Console(stderr=True)
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("", total=points)
        begun = 0

        def watch(point: Point) -> None:
            nonlocal begun
            bar.update(task, completed=begun, description=f"{point.policy}, {point.load}, {point.requests:,}")
            begun += 1

        yield watch


def table(rows: Sequence[Row]) -> None:
    """Print a row a point."""
    columns = ["", "requests", "a\nrequest", "a deci-\nsion", "pre-\nempted", "requests\na second", "MB"]
    against = any(row["against"] is not None for row in rows)
    if against:
        columns.append("against\nbase")
    cells = []
    for row in rows:
        cells.append(
            [
                f"{row['policy']}{', prefixes' if row['prefix_caching'] else ''}, {row['load']}",
                f"{row['requests']:,}",
                f"{row['timeouts_per_request']:.1f}",
                f"{row['timeouts_per_decision']:.1f}" if row["timeouts_per_decision"] else "–",
                f"{row['preemptions_per_request']:.2f}",
                f"{row['requests_per_s']:,.0f}",
                f"{row['peak_rss_mb']:.0f}",
                *(["–" if row["against"] is None else f"{row['against']:.2f}×"] if against else []),
            ]
        )
    put_table("Cost of a replay, in bare SimPy timeouts", columns, cells, wraps=True)


def read_rows(file: Path) -> list[Row]:
    """Return the rows of an earlier run.

    Raises:
        PagesimError: the file cannot be read or holds none.
    """
    try:
        rows = parse_json(file.read_text(encoding="utf-8"))["rows"]
        return [base_row(row) for row in rows]
    except OSError as error:
        raise PagesimError(f"{file}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError):
        raise PagesimError(f"{file}: is not what `pagesim bench simulator --out` stores") from None

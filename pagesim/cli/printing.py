"""Tables in the terminal: labels left, numbers right-aligned, and no digit truncated."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

Row = Sequence[str]

UNLIMITED = 10_000
"""Columns of a terminal that none has."""

LONGEST_WORD = 40
"""Characters of a word that is not broken; a longer one, such as a path, may be."""


def terminal(*, beside: bool = False) -> Console:
    """Return a console, of standard output or error, that prints texts such as ``:page:`` verbatim."""
    return Console(stderr=beside, emoji=False)


def put_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Row],
    *,
    texts: Collection[int] = (0,),
    wraps: bool = False,
) -> None:
    """Print a table.

    Args:
        title: heading above the table; none if empty.
        columns: headings, with the unit unless the cells have it.
        rows: one cell per column each.
        texts: columns of text; the others hold numbers.
        wraps: whether the first column may wrap on a narrow terminal.
    """
    _print(title, [_table(columns, rows, texts, wraps)])


def put_side_by_side(title: str, names: Sequence[str], rows: Sequence[tuple[str, Row]]) -> None:
    """Print one column per name, in several tables if one is too wide for the terminal.

    Args:
        title: heading above all tables.
        names: column headings.
        rows: a label and one cell per name each.
    """
    console = terminal()
    unlimited = console.options.update(max_width=UNLIMITED)

    def some(first: int, end: int) -> Table:
        return _table(("", *names[first:end]), [(label, *cells[first:end]) for label, cells in rows], (0,))

    tables = []
    first = 0
    while first < len(names):
        end = len(names)
        while (
            end > first + 1 and console.measure(some(first, end), options=unlimited).maximum > console.width
        ):
            end -= 1
        tables.append(some(first, end))
        first = end
    _print(title, tables)


def _print(title: str, tables: Iterable[Table]) -> None:
    console = terminal()
    if title:
        # rich would wrap it at the width of a narrow table.
        console.print(title, style="bold", highlight=False, markup=False, soft_wrap=True)
    unlimited = console.options.update(max_width=UNLIMITED)
    for table in tables:
        least = console.measure(table, options=unlimited).minimum
        if least > console.width:
            table.padding = (0, 0, 0, 1)  # cells stand two spaces apart rather than three
            least = console.measure(table, options=unlimited).minimum
        # On a narrow terminal it sticks out rather than lose what does not fit.
        console.print(table, highlight=False, width=max(console.width, least), crop=False)


def _table(columns: Sequence[str], rows: Iterable[Row], texts: Collection[int], wraps: bool = False) -> Table:
    rows = list(rows)
    table = Table(box=SIMPLE_HEAD)
    for place, name in enumerate(columns):
        cells = [row[place] for row in rows]
        text = place in texts
        words = [*name.split(), *(word for cell in cells for word in (cell.split() if text else [cell]))]
        longest = max(map(len, words), default=0)
        table.add_column(
            escape(name),
            justify="left" if text else "right",
            overflow="fold",
            no_wrap=place == 0 and text and not wraps,
            min_width=min(longest, LONGEST_WORD) if text else longest,
        )
    for row in rows:
        table.add_row(*map(escape, row))
    return table

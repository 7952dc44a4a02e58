"""Compare: compares a golden log's tables with pagesim's cell by cell and finds the first difference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:  # pandas is slow to import
    import pandas as pd

CLOCK_TOLERANCE_S = 1e-9
"""Seconds by which clocks may differ: a log's are sums of floats, pagesim's are whole ticks."""

AROUND = 2
"""Number of rows shown before and after a difference."""


@dataclass(frozen=True)
class Difference:
    """The first difference between pagesim's table and the log's.

    Attributes:
        table: ``steps``, ``batches`` or ``requests``.
        row: the first row that differs, counting from 0; if all common rows are equal, the length of the
            shorter table.
        column: the first column that differs in that row; ``rows`` if one table is longer.
        ours: pagesim's cell, or its number of rows.
        theirs: the log's cell, or its number of rows.
        columns: every column that differs in that row, in the log's order.
        around: that row and its neighbours, as text; ``18 ≠ 17`` where pagesim has 18 and the log 17.
    """

    table: str
    row: int
    column: str
    ours: Any
    theirs: Any
    columns: tuple[str, ...]
    around: str

    def __str__(self) -> str:
        if self.column == "rows":
            head = f"{self.table}: {self.ours:,} rows, the log has {self.theirs:,}"
        else:
            head = f"{self.table}, row {self.row}, {self.column}: {self.ours}, the log has {self.theirs}"
            if len(self.columns) > 1:
                head += f" (differ as well: {', '.join(self.columns[1:])})"
        return f"{head}\n{self.around}"


def first_difference(table: str, ours: pd.DataFrame, theirs: pd.DataFrame) -> Difference | None:
    """Return the first difference between pagesim's table and the log's; None if every cell is equal.

    This is the first row in which any column differs, and its first such column in the log's order. Floats
    are seconds and may differ by ``CLOCK_TOLERANCE_S``; two NaNs are equal. All other cells must be equal.

    Args:
        table: the table's name, used in the result.
        ours: pagesim's table, ``[M]`` rows, with every column of ``theirs``.
        theirs: the log's table, ``[N]`` rows.

    Raises:
        KeyError: ``ours`` lacks a column.
    """
    rows = min(len(ours), len(theirs))
    unequal = {
        name: _unequal(ours[name].to_numpy()[:rows], theirs[name].to_numpy()[:rows])
        for name in theirs.columns
    }
    differs = np.logical_or.reduce([np.zeros(rows, bool), *unequal.values()])
    if differs.any():
        row = int(np.argmax(differs))
        columns = tuple(name for name, bad in unequal.items() if bad[row])
        cells = ours[columns[0]].iloc[row], theirs[columns[0]].iloc[row]
    elif len(ours) != len(theirs):
        row, columns, cells = rows, ("rows",), (len(ours), len(theirs))
    else:
        return None
    return Difference(table, row, columns[0], *cells, columns, _side_by_side(ours, theirs, row, columns))


def _unequal(ours: npt.NDArray[Any], theirs: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return which cells differ, ``[N]``."""
    if "f" not in (ours.dtype.kind, theirs.dtype.kind):
        return np.asarray(ours != theirs, bool)
    near = np.abs(ours - theirs) <= CLOCK_TOLERANCE_S
    return np.asarray(~(near | (np.isnan(ours) & np.isnan(theirs))), bool)


def _side_by_side(ours: pd.DataFrame, theirs: pd.DataFrame, row: int, columns: tuple[str, ...]) -> str:
    """Return the rows around a difference as text, one column per row: its identifiers and what differs."""
    import pandas as pd

    rows = range(max(0, row - AROUND), min(row + AROUND + 1, max(len(ours), len(theirs))))
    shown = [name for name in dict.fromkeys([*theirs.columns[:2], *columns]) if name in theirs]
    cells = {}
    for at in rows:
        cells[f"> {at}" if at == row else f"{at}"] = [_cell(ours, theirs, name, at) for name in shown]
    return pd.DataFrame(cells, index=shown).to_string()


def _cell(ours: pd.DataFrame, theirs: pd.DataFrame, name: str, row: int) -> str:
    """Return a cell's text; if the tables differ, both texts with pagesim's first."""
    mine, logged = (
        None if row >= len(table) else table[name].iloc[row : row + 1].to_numpy() for table in (ours, theirs)
    )
    if mine is None or logged is None:
        return f"{_text(mine)} ≠ {_text(logged)}"
    return f"{_text(mine)} ≠ {_text(logged)}" if _unequal(mine, logged)[0] else _text(mine)


def _text(cell: npt.NDArray[Any] | None) -> str:
    if cell is None:
        return "–"
    return f"{cell[0]:.9f}" if cell.dtype.kind == "f" else str(cell[0])

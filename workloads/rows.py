"""Rows: the columns of one file while they are checked, and what becomes of the bad rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pagesim.errors import TraceError, brief, escaped
from pagesim.workloads.trace import MAX_TOKENS, FloatColumn, IntColumn
from pagesim.workloads.values import Column, Mask, is_missing, names, numbers

OnBadRow = Literal["error", "skip"]


class Rows:
    """The columns of a file, ``N`` values each; a check marks rows as bad and remembers why the first one is.

    Args:
        path: the file, for messages.
        columns: column name (lower case) to its values.
        label: how a person finds row ``i`` (from 0) in the file, such as ``row 3 (line 4)``.
        on_bad_row: ``"error"`` to raise at the first bad row, ``"skip"`` to leave bad rows out and note it.

    Attributes:
        used: names of the columns that were read.
    """

    def __init__(
        self, path: Path, columns: Mapping[str, Column], label: Callable[[int], str], on_bad_row: OnBadRow
    ) -> None:
        self.path = path
        self.columns = columns
        self.notes: list[str] = []
        self.used: set[str] = set()
        self._label = label
        self._on_bad_row = on_bad_row
        size = len(next(iter(columns.values())))
        self.bad: Mask = np.zeros(size, bool)
        self._left_out: Mask = np.zeros(size, bool)
        self._first: tuple[int, str] | None = None

    def __len__(self) -> int:
        return len(self.bad)

    def column(self, name: str) -> Column:
        """Return a column as the file holds it, and note that it is used."""
        self.used.add(name)
        return self.columns[name]

    def reject(self, bad: Mask, why: Callable[[int], str]) -> None:
        """Mark rows as bad; ``why(i)`` says what is wrong with row ``i``. A row keeps its first reason."""
        fresh = bad & ~self.bad & ~self._left_out
        if not fresh.any():
            return
        row = int(np.argmax(fresh))
        if self._first is None or row < self._first[0]:
            self._first = (row, why(row))
        self.bad |= fresh

    def reject_values(self, name: str, good: Mask, bound: str) -> None:
        """Mark the rows whose value in this column is not ``good``; ``bound`` says what a good one is."""
        values = self.column(name)
        self.reject(~good, lambda row: f"{name} {shown(values[row])}; it must be {bound}")

    def leave_out(self, rows: Mask, why: str) -> None:
        """Leave out rows that the format itself marks as no request, and note how many."""
        self._left_out |= rows
        if rows.any():
            self.notes.append(f"left out {int(rows.sum())} of {len(self)} rows: {why}")

    def whole_numbers(self, name: str, low: int, high: int) -> IntColumn:
        """Return a column of whole numbers from ``low`` to ``high``; bad rows hold ``low``."""
        values = numbers(self.column(name))
        good = (values >= low) & (values <= high)
        good[good] = values[good] == np.floor(values[good])
        self.reject_values(name, good, f"a whole number from {low} to {high}")
        return np.where(good, values, low).astype(np.int64)

    def tokens(self, name: str) -> IntColumn:
        """Return a column of token counts, 1 to ``MAX_TOKENS``."""
        return self.whole_numbers(name, 1, MAX_TOKENS)

    def seconds(self, name: str, per_second: float = 1.0) -> FloatColumn:
        """Return a column of times in seconds; the file counts ``per_second`` of its units in one."""
        values = numbers(self.column(name))
        good = np.isfinite(values) & (values >= 0)
        self.reject_values(name, good, "a finite time from 0")
        return np.where(good, values, 0.0) / per_second

    def distinct(self, name: str) -> npt.NDArray[Any]:
        """Return a column of distinct ids; of rows that repeat an id all but the first good one are bad."""
        ids = names(self.column(name))
        self.reject(
            np.array([v is None for v in ids], bool), lambda row: f"{name} is missing; every row needs one"
        )
        seen: dict[object, int] = {}
        repeats = np.zeros(len(self), bool)
        for row in np.flatnonzero(~self.bad & ~self._left_out).tolist():
            repeats[row] = seen.setdefault(ids[row], row) != row
        self.reject(
            repeats,
            lambda row: (
                f"{name} {shown(ids[row])}, as in {self._label(seen[ids[row]])}; ids must be distinct"
            ),
        )
        return ids

    def settle(self) -> IntColumn:
        """Return the rows to use; bad ones raise, or are noted, and at least one is left.

        Raises:
            TraceError: a row is bad and bad rows are not skipped, or none is left.
        """
        kept = np.flatnonzero(~self.bad & ~self._left_out)
        if self._first is not None:
            row, why = self._first
            first = f"{self._label(row)}: {why}"
            if self._on_bad_row == "error":
                raise TraceError(f"{self.path}: {first}")
            skipped = f"{int(self.bad.sum())} of {len(self)} rows"
            if not len(kept):
                raise TraceError(f"{self.path}: no row is good, {skipped} are bad; the first: {first}")
            self.notes.append(f"skipped {skipped}: first: {first}")
        if not len(kept):
            raise TraceError(f"{self.path}: no request is left ({'; '.join(self.notes)})")
        return kept

    def settled(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Return these columns with only the rows to use."""
        kept = self.settle()
        return {
            name: column[kept] if isinstance(column, np.ndarray) else [column[i] for i in kept]
            for name, column in columns.items()
        }


def listed(columns: Iterable[str], limit: int = 80) -> str:
    """Return names of columns for a message: on one line, unprintable characters escaped, a long list cut."""
    text = escaped(", ".join(columns)[: limit + 1])
    return text if len(text) <= limit else text[: limit - 3] + "..."


def shown(value: object) -> str:
    """Say what a value is, for a message: ``is -3``, ``is missing``; long ones are cut."""
    if is_missing(value):
        return "is missing"
    return f"is {brief(value.item() if isinstance(value, np.generic) else value)}"

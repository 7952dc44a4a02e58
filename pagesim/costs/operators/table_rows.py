"""Rows of a Parquet file of operator timings, as checked columns."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pagesim.errors import PagesimError
from pagesim.setup.reading import read_parquet

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Texts = npt.NDArray[np.object_]
Flags = npt.NDArray[np.bool_]

KERNEL = "kernel_source"

MOST = 1 << 62


class Rows:
    """Rows of one table.

    Args:
        file: from which they are, for messages.
        columns: by name, each ``[N]``.
    """

    def __init__(self, file: Path, columns: Mapping[str, Ints | Floats | Texts]) -> None:
        self.file = file
        self._columns = columns

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, name: str) -> Ints | Floats | Texts:
        return self._columns[name]

    @property
    def seconds(self) -> Floats:
        """What each took, ``[N]``."""
        return np.asarray(self._columns["seconds"], np.float64)

    def ints(self, name: str) -> Ints:
        """Return a column of whole numbers, ``[N]``."""
        return np.asarray(self._columns[name], np.int64)

    def values(self, name: str) -> list[Any]:
        """Return what a column holds, each value once, in order."""
        return sorted(set(self._columns[name].tolist()))

    def where(self, **wanted: Any) -> Rows:
        """Return the rows whose columns have these values."""
        kept: Flags = np.ones(len(self), np.bool_)
        for name, value in wanted.items():
            kept &= self._columns[name] == value
        return self.at(kept)

    def at(self, kept: Flags) -> Rows:
        """Return the rows that a mask ``[N]`` keeps."""
        return Rows(self.file, {name: column[kept] for name, column in self._columns.items()})

    def groups(self, *names: str) -> list[tuple[tuple[Any, ...], Rows]]:
        """Return the rows by what these columns hold, in order."""
        keys = list(zip(*(self._columns[name].tolist() for name in names), strict=True))
        places: dict[tuple[Any, ...], list[int]] = {}
        for place, key in enumerate(keys):
            places.setdefault(key, []).append(place)
        found = []
        for key in sorted(places):
            at = np.array(places[key])
            found.append((key, Rows(self.file, {name: column[at] for name, column in self._columns.items()})))
        return found


@lru_cache(maxsize=16)
def read_rows(
    file: Path, ints: tuple[str, ...], texts: tuple[str, ...], absent: tuple[tuple[str, int], ...] = ()
) -> Rows:
    """Return a table's rows; ``latency`` is milliseconds there and ``seconds`` here.

    Args:
        file: a Parquet file.
        ints: columns of whole numbers from 0 on that are needed.
        texts: columns of text that are needed.
        absent: what columns of whole numbers hold where an older table does not have them.

    Raises:
        PagesimError: the file cannot be read, a column is missing, or a value is out of bounds.
    """
    try:
        table = read_parquet(file.read_bytes())
    except OSError as error:
        raise PagesimError(f"{file}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise PagesimError(f"{file}: is no Parquet file that can be read ({error})") from None
    defaults = dict(absent)
    columns: dict[str, Ints | Floats | Texts] = {}
    for name in ints:
        if name in defaults and name not in table.column_names:
            columns[name] = np.full(table.num_rows, defaults[name], np.int64)
            continue
        number = _numbers(table, name, file)
        if (number % 1).any() or (number < 0).any() or (number > MOST).any():
            raise PagesimError(f"{file}: {name} holds a number that is not whole or below 0")
        columns[name] = number.astype(np.int64)
    for name in texts:
        values = _column(table, name, file).to_pylist()
        if any(not isinstance(value, str) for value in values):
            raise PagesimError(f"{file}: {name} must hold texts")
        columns[name] = np.array(values, np.object_)
    seconds = _numbers(table, "latency", file) / 1e3
    if not (seconds > 0).all():
        raise PagesimError(f"{file}: latency holds {1e3 * seconds[~(seconds > 0)][0]} ms; it must be above 0")
    columns["seconds"] = seconds
    return Rows(file, columns)


def _column(table: Any, name: str, file: Path) -> Any:
    if name not in table.column_names:
        raise PagesimError(f"{file}: has no column {name}; a table of operator timings needs it")
    return table.column(name)


def _numbers(table: Any, name: str, file: Path) -> Floats:
    column = _column(table, name, file)
    try:
        found = np.array(column.to_pylist(), np.float64)
    except (TypeError, ValueError, OverflowError):
        raise PagesimError(f"{file}: {name} must hold numbers") from None
    if not np.isfinite(found).all():
        raise PagesimError(f"{file}: {name} holds a value that is no finite number")
    return found

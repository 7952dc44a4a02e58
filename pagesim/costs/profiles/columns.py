"""Checked reading of columns from CSV files with third-party timings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pagesim.errors import PagesimError, brief, reason

if TYPE_CHECKING:
    import pandas as pd

FLAGS = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}

MOST = 1e9
"""Larger numbers of tokens or bytes are rejected as mistakes."""

MOST_MS = 1e6
"""Longer times, in milliseconds, are rejected as mistakes."""


def read(file: Path) -> pd.DataFrame:
    """Return a CSV file's rows, every value as text."""
    import pandas as pd

    try:
        # Read as text, so that each column's values are checked instead of guessed.
        return pd.read_csv(file, dtype=str, encoding="utf-8")
    except OSError as error:
        raise PagesimError(f"{file}: cannot be read ({error.strerror or error})") from None
    except (ValueError, OverflowError) as error:
        raise PagesimError(f"{file}: is no CSV that can be read ({reason(error)})") from None


def column(rows: pd.DataFrame, name: str, file: Path) -> str:
    """Return the name of a column after checking that it exists."""
    if name not in rows:
        raise PagesimError(f"{file}: has no column {name}; it must be of the schema that is imported")
    return name


def counts(rows: pd.DataFrame, name: str, file: Path) -> list[int]:
    """Return a column of whole numbers."""
    found = numbers(rows, name, file, MOST)
    if (found % 1).any():
        raise PagesimError(f"{file}: {name} holds {found[found % 1 > 0].iloc[0]}; it must hold whole numbers")
    return [int(value) for value in found]


def flags(rows: pd.DataFrame, name: str, file: Path) -> list[bool]:
    """Return a column of booleans."""
    said = [FLAGS.get(str(value).strip().lower()) for value in rows[column(rows, name, file)]]
    if None in said:
        value = rows[name].iloc[said.index(None)]
        raise PagesimError(f"{file}: {name} holds {brief(value)}; it must hold True or False")
    return [bool(value) for value in said]


def numbers(
    rows: pd.DataFrame, name: str, file: Path, most: float = MOST, *, needed: bool = True
) -> pd.Series[float]:
    """Return a column of non-negative numbers."""
    import pandas as pd

    given = rows[column(rows, name, file)]
    found = pd.to_numeric(given, errors="coerce").astype("float64")
    good = (found >= 0) & (found <= most)
    if not needed:
        good |= given.isna()
    if not good.all():
        value = given[~good].iloc[0]
        raise PagesimError(f"{file}: {name} holds {brief(value)}; it must hold numbers from 0 to {most:g}")
    return found


def one(rows: pd.DataFrame, name: str, file: Path) -> int:
    """Return the single value of a column in which all rows agree."""
    values = sorted(set(counts(rows, name, file)))
    if len(values) != 1 or not values[0]:
        raise PagesimError(f"{file}: {name} is {brief(values)}; rows of one, above 0, are needed")
    return values[0]

"""Fields of logs: JSON of files and numbers within bounds, or a sentence with file, request and field."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pagesim.errors import PagesimError, brief, reason
from pagesim.experiments.recorded.run import Floats
from pagesim.setup.reading import parse_json, read_file
from pagesim.sim.clock import LONGEST_S
from pagesim.workloads.trace import MAX_TOKENS


def text_of(file: Path) -> str:
    """Return a file's text.

    Raises:
        PagesimError: it cannot be read.
    """
    try:
        return read_file(file).decode("utf-8").replace("\r\n", "\n")
    except OSError as error:
        raise PagesimError(f"{file}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise PagesimError(f"{file}: cannot be read (it is not text)") from None


CUT_OFF = "it may be cut off"
"""How the sentence about a file that is no JSON ends."""


def json_of(file: Path) -> Any:
    """Return what a file of JSON holds, or a list of what its lines do.

    Raises:
        PagesimError: it cannot be read or is no JSON.
    """
    # SGLang's client writes a rate without a bound as Python does, which is no JSON.
    text = text_of(file).replace('"request_rate": Infinity', '"request_rate": "inf"')
    try:
        return parse_json(text)
    except ValueError:
        return lines_of(file, text)


def lines_of(file: Path, text: str) -> list[Any]:
    """Return what each line of a text holds, empty ones left out.

    Raises:
        PagesimError: a line is no JSON.
    """
    try:
        return [parse_json(line) for line in text.splitlines() if line.strip()]
    except ValueError as error:
        raise PagesimError(f"{file}: is no JSON ({reason(error)}); {CUT_OFF}") from None


INSTANT = 1e12
"""Seconds since a clock began, at most: of some it was in 1970."""


def is_number(value: object, most: float, least: float = 0.0) -> bool:
    """Return whether a value is a number within bounds."""
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def seconds(where: str, field: str, values: Sequence[Any], most: float = LONGEST_S) -> Floats:
    """Return times or durations, ``[N]``, from 0 s to the longest that the simulator's clock counts.

    Args:
        where: file.
        field: what they are of.
        values: of each request.
        most: another bound, for instants of a clock that began long ago.

    Raises:
        PagesimError: one is none.
    """
    for row, value in enumerate(values):
        if not is_number(value, most):
            raise PagesimError(
                f"{where}: request {row}: {field} is {brief(value)}; a number from 0 to {most:g} s is "
                "needed: times of a clock that never runs backwards"
            )
    return np.array(values, np.float64)


def tokens(where: str, field: str, values: Sequence[Any], least: int) -> Floats:
    """Return whole numbers of tokens, ``[N]``.

    Raises:
        PagesimError: one is none.
    """
    for row, value in enumerate(values):
        if not is_number(value, MAX_TOKENS, least) or value % 1:
            raise PagesimError(
                f"{where}: request {row}: {field} is {brief(value)}; a whole number from {least} to "
                f"{MAX_TOKENS} is needed"
            )
    return np.array(values, np.float64)


def table(value: object) -> Mapping[str, Any]:
    """Return a table of JSON, an empty one where there is none."""
    return value if isinstance(value, Mapping) else {}


def csv_of(file: Path, names: Sequence[str]) -> list[dict[str, str]]:
    """Return the rows of a CSV with these columns.

    Raises:
        PagesimError: it cannot be read, a column is missing, or there is no row.
    """
    try:
        reader = csv.DictReader(text_of(file).splitlines())
        rows = list(reader)
    except csv.Error as error:
        raise PagesimError(f"{file}: is no CSV ({error})") from None
    if missing := [name for name in names if name not in (reader.fieldnames or ())]:
        raise PagesimError(f"{file}: has no column {missing[0]}; {', '.join(names)} are needed")
    if not rows:
        raise PagesimError(f"{file}: has no row; it may be cut off")
    return rows


def number(file: Path, line: int, name: str, text: str | None, least: float = 0.0) -> float:
    """Return a cell of a CSV as a number from ``least`` to 10⁹.

    Raises:
        PagesimError: it is none.
    """
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not is_number(value, 1e9, least):
        raise PagesimError(
            f"{file}: line {line}: {name} is {brief(text)}; a number from {least:g} to 1e+09 is needed"
        )
    return value

"""Layouts of JSON and CSV files, and errors that name the file, request, field and value."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
)

from pagesim.errors import PagesimError, brief, reason
from pagesim.setup.reading import parse_json, read_file
from pagesim.sim.clock import LONGEST_S
from pagesim.workloads.trace import MAX_TOKENS

CUT_OFF = "it may be cut off"
"""End of the error message about a file that is not JSON."""

OF_A_METRIC = ("value", "unit", "avg")
"""Field names that mean nothing without the name of the metric that they belong to."""

CLOCK = ": times of a clock that never runs backwards"
LIST = "a list with a value a request is needed"


class FileLayout(BaseModel):
    """The fields to read from a file, or from a request in it; all others are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


def at(*paths: str, **default: Any) -> Any:
    """Return a field that is read from the first existing one of these paths, such as ``info.timings.start``.

    A number in a path is a list index. Without a default the field is required.
    """
    places = []
    for path in paths:
        first, *others = path.split(".")
        places.append(AliasPath(first, *(int(p) if p.lstrip("-").isdigit() else p for p in others)))
    return Field(validation_alias=AliasChoices(*places), **default)


def number(
    least: float, most: float, *, whole: bool = False, cell: bool = False, why: str = ""
) -> Callable[[Any], float]:
    """Return a validator that accepts a number within bounds and rejects everything else.

    Args:
        least: lower bound.
        most: upper bound.
        whole: whether to accept whole numbers only.
        cell: whether to also accept a number as text, as in a CSV cell.
        why: end of the error message.
    """
    needed = f"a whole number from {least} to {most}" if whole else f"a number from {least:g} to {most:g}"

    def taken(value: Any) -> float:
        found = value
        if cell and isinstance(value, str):
            with suppress(ValueError):
                found = float(value.replace(",", ""))
        if not is_number(found, most, least) or (whole and found % 1):
            raise ValueError(f"{needed} is needed{why}")
        return float(found)

    return taken


def is_number(value: object, most: float, least: float = 0.0) -> bool:
    """Return whether a value is a number within bounds."""
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


Instant = Annotated[float, PlainValidator(number(0, 1e12, why=CLOCK))]
"""Seconds since an epoch, which for some clocks is 1970."""

_nanoseconds = number(0, 1e21, why=CLOCK)
Nanoseconds = Annotated[float, PlainValidator(lambda value: _nanoseconds(value) / 1e9)]
"""An instant that is recorded in nanoseconds."""

Duration = Annotated[float, PlainValidator(number(0, LONGEST_S, why=CLOCK))]
Amount = Annotated[float, PlainValidator(number(0, 1e12))]
Tokens = Annotated[float, PlainValidator(number(1, MAX_TOKENS, whole=True))]
TokensOrNone = Annotated[float, PlainValidator(number(0, MAX_TOKENS, whole=True))]
Count = Annotated[float, PlainValidator(number(1, 1_000_000_000, whole=True))]
Requests = Annotated[float, PlainValidator(number(1, 1_000_000, whole=True))]
"""Number of requests to draw."""


T = TypeVar("T")
Column = Annotated[list[T], Field(min_length=1, fail_fast=True)]
"""One value per request."""

M = TypeVar("M", bound=BaseModel)


def parsed(kind: type[M], name: str, data: Any, hint: str = "", *, row: int | None = None) -> M:
    """Parse data as a layout.

    Args:
        kind: the layout.
        name: name of the file, for error messages.
        data: contents of the file, or of a request in it.
        hint: what to do if a field is missing.
        row: index of the request, if the data is one.

    Raises:
        PagesimError: a field is missing or invalid; the message names file, request, field and value.
    """
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    texts = [str(part) for part in first["loc"] if isinstance(part, str)]
    rows = [part for part in first["loc"] if isinstance(part, int)] if row is None else [row]
    where = f"{name}: request {rows[0]}" if rows else name
    what = next((text for text in reversed(texts) if text not in OF_A_METRIC), "it")
    if first["type"] == "missing":
        raise PagesimError(f"{where}: has no {what}{f'; {hint}' if hint else ''}")
    if not first["loc"] and first["type"] == "value_error":
        raise PagesimError(f"{where}: {first['ctx']['error']}")
    kinds = {
        "value_error": str(first.get("ctx", {}).get("error")),
        "too_short": LIST,
        "list_type": "a list of seconds is needed" if rows else LIST,
        "string_type": "a text is needed",
    }
    needed = kinds.get(first["type"], "a table is needed")
    raise PagesimError(f"{where}: {what} is {brief(first['input'])}; {needed}")


def table(value: object) -> Mapping[str, Any]:
    """Return a JSON table, or an empty one if the value is not a table."""
    return value if isinstance(value, Mapping) else {}


def text_of(file: Path) -> str:
    """Return a file's text.

    Raises:
        PagesimError: the file cannot be read.
    """
    try:
        return read_file(file).decode("utf-8").replace("\r\n", "\n")
    except OSError as error:
        raise PagesimError(f"{file}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise PagesimError(f"{file}: cannot be read (it is not text)") from None


def json_of(file: Path, text: str) -> Any:
    """Parse JSON, or JSON lines with empty lines ignored.

    Raises:
        PagesimError: the text is neither.
    """
    # SGLang's client writes an unlimited rate as Python does, which is not valid JSON.
    text = text.replace('"request_rate": Infinity', '"request_rate": "inf"')
    try:
        return parse_json(text)
    except ValueError:
        pass
    try:
        return [parse_json(line) for line in text.splitlines() if line.strip()]
    except ValueError as error:
        raise PagesimError(f"{file}: is no JSON ({reason(error)}); {CUT_OFF}") from None


def csv_of(file: Path, text: str, names: Sequence[str]) -> list[dict[str, str]]:
    """Return the rows of a CSV with these columns.

    Raises:
        PagesimError: a column is missing, or there are no rows.
    """
    try:
        reader = csv.DictReader(text.splitlines())
        rows = list(reader)
    except csv.Error as error:
        raise PagesimError(f"{file}: is no CSV ({error})") from None
    if missing := [name for name in names if name not in (reader.fieldnames or ())]:
        raise PagesimError(f"{file}: has no column {missing[0]}; {', '.join(names)} are needed")
    if not rows:
        raise PagesimError(f"{file}: has no row; {CUT_OFF}")
    return rows

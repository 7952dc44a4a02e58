"""Layouts of files: what a file of JSON or CSV holds, or a sentence with file, request, field and value."""

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
"""How the sentence about a file that is no JSON ends."""

OF_A_METRIC = ("value", "unit", "avg")
"""Fields that say nothing without the one that they are of."""

CLOCK = ": times of a clock that never runs backwards"
LIST = "a list with a value a request is needed"


class FileLayout(BaseModel):
    """What is read of a file, or of a request in it; everything else is passed over."""

    model_config = ConfigDict(extra="ignore", frozen=True)


def at(*paths: str, **default: Any) -> Any:
    """Return a field of a layout that stands at the first of these paths, such as ``info.timings.start``.

    A number in a path is a place in a list. Without a default the field must be there.
    """
    places = []
    for path in paths:
        first, *others = path.split(".")
        places.append(AliasPath(first, *(int(p) if p.lstrip("-").isdigit() else p for p in others)))
    return Field(validation_alias=AliasChoices(*places), **default)


def number(
    least: float, most: float, *, whole: bool = False, cell: bool = False, why: str = ""
) -> Callable[[Any], float]:
    """Return a function that takes a number within bounds, and refuses all else.

    Args:
        least: bound below.
        most: bound above.
        whole: take whole numbers only.
        cell: take the text of one, too, as a cell of a CSV is.
        why: end of the sentence.
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
"""Seconds since a clock began: of some it was in 1970."""

_nanoseconds = number(0, 1e21, why=CLOCK)
Nanoseconds = Annotated[float, PlainValidator(lambda value: _nanoseconds(value) / 1e9)]
"""The same, where a file has nanoseconds."""

Duration = Annotated[float, PlainValidator(number(0, LONGEST_S, why=CLOCK))]
Amount = Annotated[float, PlainValidator(number(0, 1e12))]
Tokens = Annotated[float, PlainValidator(number(1, MAX_TOKENS, whole=True))]
TokensOrNone = Annotated[float, PlainValidator(number(0, MAX_TOKENS, whole=True))]
Count = Annotated[float, PlainValidator(number(1, 1_000_000_000, whole=True))]
Requests = Annotated[float, PlainValidator(number(1, 1_000_000, whole=True))]
"""Requests that are drawn."""


T = TypeVar("T")
Column = Annotated[list[T], Field(min_length=1, fail_fast=True)]
"""A value a request."""

M = TypeVar("M", bound=BaseModel)


def parsed(kind: type[M], name: str, data: Any, hint: str = "", *, row: int | None = None) -> M:
    """Return data as a layout has it.

    Args:
        kind: the layout.
        name: of the file, for the sentence.
        data: what the file holds, or a request of it.
        hint: what to do where a field is missing.
        row: of the request, where the data is one.

    Raises:
        PagesimError: a field is missing or wrong; the sentence names file, request, field and value.
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
    """Return a table of JSON, an empty one where there is none."""
    return value if isinstance(value, Mapping) else {}


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


def json_of(file: Path, text: str) -> Any:
    """Return what a text of JSON holds, or a list of what its lines do, empty ones left out.

    Raises:
        PagesimError: it is no JSON.
    """
    # SGLang's client writes a rate without a bound as Python does, which is no JSON.
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
        PagesimError: a column is missing, or there is no row.
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

"""From the bytes of a file to rows: whether it is CSV, JSON, JSON lines or Parquet is told by its content."""

from __future__ import annotations

import csv
import io
import json
import os
import select
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pagesim.errors import TraceError, brief, reason
from pagesim.setup.reading import read_parquet
from pagesim.workloads.rows import OnBadRow, Rows, listed, shown
from pagesim.workloads.values import Column

MOST_PIPED = 1 << 30
"""Bytes that are read from a pipe at most; one that does not end would fill all memory."""

WRITER_WITHIN_S = 5
"""Seconds that a pipe without a writer is waited on."""

PAIR = ("in", "out")
"""The columns of a JSON list of ``[in, out]`` pairs."""


class _Repeated(ValueError):
    """A JSON object has a key twice, of which Python would silently keep the last."""


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object of its keys and values.

    Raises:
        _Repeated: a key occurs twice.
    """
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise _Repeated(f"the key {brief(twice)} occurs twice in one object")
    return made


def open_rows(path: Path, on_bad_row: OnBadRow) -> Rows:
    """Read a file whole and return its rows, nothing checked but that they are rows.

    Raises:
        TraceError: there is no such file, it is empty, truncated, not text, or holds no table.
    """
    data = _bytes(path)
    if data[:4] == b"PAR1":
        return _parquet(path, data, on_bad_row)
    text = _text(path, data)
    if not text.strip():
        raise TraceError(f"{path}: the file is empty")
    start = text.lstrip()[:1]
    if start == "[":
        return _json(path, text, on_bad_row)
    if start == "{":
        return _json_lines(path, text, on_bad_row)
    return _csv(path, text, on_bad_row)


def _bytes(path: Path) -> bytes:
    try:
        if not path.exists():
            raise TraceError(f"{path}: there is no such file")
        if path.is_fifo():
            data = _piped(path)
        elif not path.is_file():
            raise TraceError(f"{path}: is not a regular file; give the path of one trace file")
        else:
            data = path.read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, TraceError):
            raise
        raise TraceError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    if not data:
        raise TraceError(f"{path}: the file is empty")
    return data


def _piped(path: Path) -> bytes:
    """Return what comes through a pipe until its writers close it.

    Raises:
        TraceError: nothing writes to it, or more comes than `MOST_PIPED`.
    """
    found = bytearray()
    # Opened so, a pipe without a writer does not block; reading it ends at once.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as pipe:  # noqa: PTH123
        if not select.select([pipe], [], [], WRITER_WITHIN_S)[0]:
            chunk = pipe.read(1 << 20)
            if chunk == b"":  # the end, as there is no writer; nothing yet would be None
                raise TraceError(
                    f"{path}: is a pipe, and in {WRITER_WITHIN_S} s nothing has begun to write to it"
                )
            found += chunk or b""
        os.set_blocking(pipe.fileno(), True)
        while chunk := pipe.read(1 << 20):
            found += chunk
            if len(found) > MOST_PIPED:
                raise TraceError(
                    f"{path}: is a pipe through which more than {MOST_PIPED >> 20} MiB came; a trace that is "
                    "larger is read from a file"
                )
    return bytes(found)


def _text(path: Path, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TraceError(
            f"{path}: line {line}: byte {data[error.start]:#04x} is not UTF-8 text; "
            "a trace is UTF-8 text (CSV, JSON, JSON lines) or Parquet"
        ) from error


def _csv(path: Path, text: str, on_bad_row: OnBadRow) -> Rows:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    cells: list[list[str]] = []
    lines: list[int] = []
    try:
        for record in reader:
            if len(record) > 1 or (record and record[0].strip()):
                cells.append(record)
                lines.append(reader.line_num)
    except csv.Error as error:
        raise TraceError(f"{path}: line {reader.line_num}: is not CSV ({error})") from error
    if not cells:
        raise TraceError(f"{path}: the file is empty")
    header = [name.strip().lower() for name in cells[0]]
    named = [name for name in header if name]
    if len(set(named)) < len(named):
        twice = next(name for name in named if named.count(name) > 1)
        raise TraceError(f"{path}: line {lines[0]}: column {shown(twice)[3:]} occurs twice in the header")
    del cells[0]
    if not cells:
        # A file that starts with neither a bracket nor a known header is not even a table.
        return Rows(path, {name: [] for name in header}, str, on_bad_row)
    width = len(header)
    wrong = np.array([len(record) != width for record in cells], bool)
    counts = {row: len(cells[row]) for row in np.flatnonzero(wrong).tolist()}
    for row in counts:
        cells[row] = (cells[row] + [""] * width)[:width]
    columns: dict[str, Column] = dict(zip(header, zip(*cells, strict=True), strict=True))
    columns.pop("", None)
    rows = Rows(path, columns or {"": []}, lambda row: f"row {row + 1} (line {lines[row + 1]})", on_bad_row)
    if columns:
        rows.reject(wrong, lambda row: f"the row has {counts[row]} fields, the header has {width}")
    return rows


def _json(path: Path, text: str, on_bad_row: OnBadRow) -> Rows:
    try:
        values = json.loads(text, object_pairs_hook=_distinct)
    except json.JSONDecodeError as error:
        raise TraceError(
            f"{path}: line {error.lineno}: is not complete JSON ({error.msg} at column {error.colno})"
        ) from error
    except _Repeated as error:
        raise TraceError(f"{path}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: is not JSON that can be read ({_reason(error)})") from error
    if not values:
        raise TraceError(f"{path}: the file holds an empty list, no request")
    return _records(path, values, [f"row {i + 1}" for i in range(len(values))], on_bad_row)


def _json_lines(path: Path, text: str, on_bad_row: OnBadRow) -> Rows:
    values: list[object] = []
    labels: list[str] = []
    broken: dict[int, str] = {}
    # Split on newlines only: JSON text may hold the other characters that str.splitlines takes for line ends.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            values.append(json.loads(line, object_pairs_hook=_distinct))
        except _Repeated as error:
            broken[len(values)] = str(error)
            values.append(None)
        except (ValueError, RecursionError) as error:
            broken[len(values)] = f"is not a complete JSON object ({_reason(error)})"
            values.append(None)
        labels.append(f"row {len(values)} (line {number})")
    if 0 in broken and len(values) > 1:
        try:
            return _json(path, f"[{text}]", on_bad_row)  # one object over many lines
        except TraceError:
            if len(broken) == len(values):
                raise
    if len(broken) == len(values):
        raise TraceError(f"{path}: {labels[0]}: {broken[0]}")
    return _records(path, values, labels, on_bad_row, broken)


def _records(
    path: Path,
    values: Sequence[object],
    labels: Sequence[str],
    on_bad_row: OnBadRow,
    broken: dict[int, str] | None = None,
) -> Rows:
    broken = dict(broken or {})
    if sum(isinstance(v, list) for v in values) > len(values) / 2:
        pairs = [v if isinstance(v, list) and len(v) == 2 else None for v in values]
        columns: dict[str, Column] = {
            name: [None if p is None else p[side] for p in pairs] for side, name in enumerate(PAIR)
        }
        wrong = np.array([p is None for p in pairs], bool)
        wanted = "an [in, out] pair"
    else:
        records = [{str(k).lower(): v for k, v in r.items()} if isinstance(r, dict) else None for r in values]
        found: dict[str, None] = {}
        for record in records:
            found.update(dict.fromkeys(record or ()))
        if not found:
            raise TraceError(f"{path}: {labels[0]}: {shown(values[0])}, not an object or an [in, out] pair")
        columns = {name: [r.get(name) if r else None for r in records] for name in found}
        wrong = np.array([r is None for r in records], bool)
        wanted = "an object with named values"
        for row, (record, value) in enumerate(zip(records, values, strict=True)):
            if isinstance(value, dict) and record is not None and len(record) < len(value):
                wrong[row], broken[row] = True, "two of its keys differ in capital letters alone"
    rows = Rows(path, columns, labels.__getitem__, on_bad_row)
    rows.reject(wrong, lambda row: broken.get(row, f"the value {shown(values[row])}; it must be {wanted}"))
    for name in [name for name in columns if name.endswith(("_id", " id"))]:
        rows.reject_values(
            name,
            np.array([not isinstance(value, str) or _is_text(value) for value in columns[name]], bool),
            "text: JSON can spell half a surrogate pair, and no file can store it",
        )
    return rows


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at column {error.colno}"
    return str(error).split(";")[0]


def _parquet(path: Path, data: bytes, on_bad_row: OnBadRow) -> Rows:
    try:
        table = read_parquet(data)
    except ValueError as error:
        raise TraceError(f"{path}: is a damaged or truncated Parquet file ({reason(error)})") from error
    try:
        columns = {
            str(name).strip().lower(): _arrow_column(column)
            for name, column in zip(table.column_names, table.columns, strict=True)
        }
    except (ValueError, OverflowError) as error:  # dates beyond the calendar, texts that are not UTF-8
        raise TraceError(f"{path}: holds what Python cannot hold ({reason(error)})") from error
    except MemoryError:
        raise TraceError(f"{path}: its {table.num_rows} rows need more memory than is free") from None
    if len(columns) < table.num_columns:
        raise TraceError(f"{path}: a column name occurs twice in {listed(table.column_names)}")
    return Rows(path, columns or {"": []}, lambda row: f"row {row + 1}", on_bad_row)


def _arrow_column(column: Any) -> list[Any] | npt.NDArray[Any]:
    import pyarrow as pa

    plain = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    if plain and not column.null_count and column.num_chunks:
        # Not column.to_numpy(), which imports pandas.
        return np.concatenate([np.from_dlpack(chunk) for chunk in column.chunks])
    listed: list[Any] = column.to_pylist()
    return listed

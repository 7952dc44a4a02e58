"""Traces on disk: each is made once, stored as it is, and loaded once by each process that replays it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
import numpy.typing as npt

from pagesim.errors import PagesimError, reason
from pagesim.setup.reading import read_file
from pagesim.workloads.trace import Trace

KEPT = 4
"""Traces that a process keeps in memory; runs come trace by trace, so few are in use at a time."""

DIGEST = "digest"
"""The entry of a stored trace that holds the digest of its content."""

T = TypeVar("T")

Encoded = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class StoredTrace:
    """A trace in a file that other processes can read; it is cheap to send to them."""

    file: Path

    def load(self) -> Trace:
        """Return the trace."""
        return _load(self.file)

    def digest(self) -> str:
        """Return a hash of the trace's content: every column, but not the notes on how it came about."""
        return _read(self.file, _checked_digest)


def write(trace: Trace, out: BinaryIO) -> None:
    """Write a trace as ``.npz`` to an open file, with the digest of its content."""
    columns = _encoded(trace)
    entries: dict[str, Any] = {**columns, "notes": _text(list(trace.notes))}
    entries[DIGEST] = np.array(_digest(columns))
    np.savez(out, **entries)


def _encoded(trace: Trace) -> Encoded:
    """Return the columns as arrays that need no pickle: what is no plain array is a text of JSON."""
    columns: Encoded = {}
    for name in sorted(f.name for f in fields(trace) if f.name != "notes"):
        value = getattr(trace, name)
        if isinstance(value, np.ndarray) and value.dtype != object:
            columns[name] = value
        elif value is not None:
            kind = "objects" if isinstance(value, np.ndarray) else "json"
            columns[f"{name}:{kind}"] = _text(value.tolist() if isinstance(value, np.ndarray) else value)
    return columns


def _digest(columns: Encoded) -> str:
    digest = hashlib.sha256()
    for name, column in columns.items():
        digest.update(f"{name} {column.dtype.str} {column.shape}\0".encode())
        digest.update(np.ascontiguousarray(column).tobytes())
    return digest.hexdigest()[:32]


def _text(value: Any) -> npt.NDArray[np.uint8]:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


@lru_cache(maxsize=KEPT)
def _load(file: Path) -> Trace:
    return _read(file, _trace)


def _checked_digest(stored: Any) -> str:
    """Return the digest that is stored with a trace's columns, and make sure that it is theirs."""
    names = sorted((name for name in stored.files if name not in (DIGEST, "notes")), key=_column)
    digest = str(stored[DIGEST])
    if digest != _digest({name: stored[name] for name in names}):
        raise ValueError("it was changed since it was stored")
    return digest


def _column(entry: str) -> str:
    return entry.partition(":")[0]


def _trace(stored: Any) -> Trace:
    _checked_digest(stored)
    columns: dict[str, Any] = {}
    for entry in stored.files:
        name, _, kind = entry.partition(":")
        if name == DIGEST:
            continue
        if kind or name == "notes":
            value = json.loads(stored[entry].tobytes())
            columns[name] = np.array(value, dtype=object) if kind == "objects" else value
        else:
            columns[name] = stored[entry]
    columns["notes"] = tuple(columns["notes"])
    return Trace(**columns)


def _read(file: Path, what: Callable[[Any], T]) -> T:
    """Return something of a stored trace.

    Raises:
        PagesimError: the file is damaged.
    """
    try:
        with BytesIO(read_file(file)) as opened, np.load(opened, allow_pickle=False) as stored:
            claimed = sum(entry.file_size for entry in stored.zip.infolist())
            # They are not compressed: what claims to hold more than it takes is damaged.
            if claimed > opened.getbuffer().nbytes:
                raise ValueError(f"it claims {claimed} bytes")
            return what(stored)
    except Exception as error:  # a damaged archive raises what its parts raise
        raise PagesimError(
            f"{file}: is no trace that a sweep stored, or is damaged ({reason(error)}); remove it, and run "
            "the same again"
        ) from None

"""Storage of rows: one line per finished point, written at once, so that a killed bench repeats nothing."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from pathlib import Path
from typing import IO, Any

from pagesim.errors import PagesimError, brief
from pagesim.kernels.bench.rows import MEASURED, PARAMETERS, SCHEMA, Row
from pagesim.setup.files import DRAFT, put, put_text

JOURNAL = "rows.jsonl"
"""One row per line, in the order of measurement. A later row replaces an earlier one with the same key."""


class RowStore:
    """A folder of rows, for one bench at a time.

    A row is appended to the journal and synced to disk before the next point starts. A line that was cut
    short by a kill is dropped when the folder is reopened, and its point is remeasured.

    Args:
        folder: folder, created if missing; None keeps rows in memory only.

    Raises:
        PagesimError: the folder cannot be written, contains something else, is in use by another bench, or
            its rows have another schema.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._rows: dict[str, Row] = {}
        self._journal: IO[bytes] | None = None
        if folder is not None:
            try:
                self._open(folder)
            except OSError as error:
                raise PagesimError(f"{folder}: cannot be written ({error.strerror})") from None

    def __enter__(self) -> RowStore:
        return self

    def __exit__(self, *error: object) -> None:
        if self._journal is not None:
            self._journal.close()

    def __contains__(self, key: str) -> bool:
        return key in self._rows

    def __getitem__(self, key: str) -> Row:
        return self._rows[key]

    @property
    def rows(self) -> list[Row]:
        """All rows, in the order in which they were first measured."""
        return list(self._rows.values())

    def add(self, row: Row) -> None:
        """Store a row, replacing any earlier one with the same key."""
        if self._journal is not None:
            line = json.dumps(row, allow_nan=False).encode() + b"\n"
            try:
                # Bypass Python's buffer, which would retry the write when the file is closed.
                if os.write(self._journal.fileno(), line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(self._journal.fileno())
            except OSError as error:
                raise PagesimError(f"{self.folder}: cannot be written ({error.strerror})") from None
        self._rows[row["key"]] = row

    def publish(self) -> None:
        """Write all rows as ``rows.json`` and ``rows.parquet``, each whole or not at all."""
        if self.folder is None:
            return
        text = json.dumps({"schema": SCHEMA, "rows": self.rows}, indent=1, allow_nan=False)
        put_text(self.folder / "rows.json", text + "\n")
        put(self.folder / "rows.parquet", lambda out: write_parquet(self.rows, out))

    def _open(self, folder: Path) -> None:
        journal = folder / JOURNAL
        if folder.exists() and not folder.is_dir():
            raise PagesimError(f"{folder}: exists and is no folder; choose another")
        others = folder.is_dir() and any(not file.name.startswith(DRAFT) for file in folder.iterdir())
        if others and not journal.is_file():
            raise PagesimError(f"{folder}: is not empty and holds no rows of a bench; choose another folder")
        folder.mkdir(parents=True, exist_ok=True)
        opened = journal.open("ab+")
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            opened.seek(0)
            content = opened.read()
            whole = _whole_lines(content)
            self._rows = {row["key"]: row for row in _parse(whole, journal)}
            if len(whole) < len(content):
                opened.truncate(len(whole))
            for left in folder.glob(f"{DRAFT}*"):  # left by a killed bench
                left.unlink()
        except BlockingIOError:
            opened.close()
            raise PagesimError(f"{folder}: another bench is writing there; wait for it or stop it") from None
        except BaseException:
            opened.close()
            raise
        self._journal = opened


def read_rows(folder: Path) -> list[Row]:
    """Return the rows of a bench's folder, even if the bench was killed.

    Raises:
        PagesimError: there are no rows, or they cannot be read.
    """
    journal = folder / JOURNAL
    try:
        content = journal.read_bytes()
    except OSError as error:
        raise PagesimError(f"{journal}: cannot be read ({error.strerror})") from None
    return list({row["key"]: row for row in _parse(_whole_lines(content), journal)}.values())


def write_parquet(rows: list[Row], file: Path | IO[bytes]) -> None:
    """Write rows as one flat table; a column keeps its type even if it is empty in all rows."""
    import pandas as pd

    kinds = {str: "string", int: "Int64", float: "Float64"}
    known = {"schema": int, "key": str, **PARAMETERS, **MEASURED}
    table = pd.json_normalize(rows, sep="_")
    table = table.reindex(columns=list(dict.fromkeys((*known, *table))))
    table.astype({name: kinds[kind] for name, kind in known.items()}).to_parquet(file, index=False)


def _whole_lines(content: bytes) -> bytes:
    return content[: content.rfind(b"\n") + 1]


def _parse(content: bytes, journal: Path) -> list[Row]:
    rows = []
    for number, line in enumerate(content.splitlines(), 1):
        try:
            row: Any = json.loads(line)
        except (ValueError, RecursionError):
            raise PagesimError(f"{journal}, line {number}: is no JSON; the file is damaged") from None
        if not isinstance(row, dict) or row.get("schema") != SCHEMA or not isinstance(row.get("key"), str):
            said = row.get("schema") if isinstance(row, dict) else None
            raise PagesimError(
                f"{journal}, line {number}: schema is {brief(said)}; this version of pagesim reads {SCHEMA}; "
                "choose another folder"
            )
        rows.append({**dict.fromkeys((*PARAMETERS, *MEASURED)), **row})  # add columns newer than the row
    return rows

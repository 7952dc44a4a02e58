"""RunStore: a folder of finished runs, each in a file of its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from math import inf
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from pagesim.errors import PagesimError
from pagesim.setup.files import put_text
from pagesim.setup.reading import parse_json, read_text

MARKER = "store.json"
"""File that marks a folder as a run store, in which results are added and tables replaced."""

SCHEMA = 1


@dataclass(frozen=True)
class RunRecord:
    """How a run ended.

    Attributes:
        status: ``done`` or ``failed``.
        error: what went wrong, in a sentence; None if nothing did.
        summary: every metric, as in a run's ``summary.json``; None for a failed run.
        notes: what was noticed or assumed during the run.
    """

    status: Literal["done", "failed"]
    error: str | None
    summary: dict[str, Any] | None
    notes: tuple[str, ...] = ()


_ENDED = tuple(field.name for field in fields(RunRecord))

SEAL = "sha256"
"""The field of a stored run that holds a hash of its outcome."""


def _seal(ended: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(ended, sort_keys=True).encode()).hexdigest()


class RunStore:
    """Finished runs in a folder, each in a file named by its key.

    Files are written atomically, so that killed processes and concurrent writers
    do no harm.

    Args:
        folder: an existing store, or a folder that is empty or does not exist yet.

    Raises:
        PagesimError: the folder contains something else, or cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        # Workers receive paths, and may have another working directory.
        self.folder = folder.absolute()
        self._runs = self.folder / "runs"
        marker = self.folder / MARKER
        try:
            if folder.exists() and not folder.is_dir():
                raise PagesimError(f"{folder}: exists and is no folder; choose another")
            if marker.is_file():
                schema = _read(marker)
                if schema != {"schema": SCHEMA}:
                    raise PagesimError(f"{folder}: was stored by another version of pagesim; choose another")
            elif folder.is_dir() and any(folder.iterdir()):
                raise PagesimError(
                    f"{folder}: is not empty and holds no sweep of pagesim; choose another folder or empty it"
                )
            self._runs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PagesimError(f"{folder}: cannot be written ({error.strerror})") from None
        put_text(marker, json.dumps({"schema": SCHEMA}))

    def run(self, key: str) -> RunRecord | None:
        """Return how a run ended; None if it is not in the store.

        Raises:
            PagesimError: the file cannot be read, or was changed since the run was stored.
        """
        file = self._runs / f"{key}.json"
        found = _read(file)
        # Other versions use other keys, so a file without a seal is not a run of this version.
        if not isinstance(found, dict) or SEAL not in found:
            return None
        ended: dict[str, Any] = {name: found.get(name) for name in _ENDED}
        if found[SEAL] != _seal(ended):
            raise PagesimError(
                f"{file}: was changed since the run was stored; remove it, and run the same again"
            )
        return RunRecord(**{**ended, "notes": tuple(ended["notes"])})

    def put_run(self, key: str, record: RunRecord, scenario: dict[str, Any]) -> None:
        """Store how a run ended; ``scenario`` is for people who read the file."""
        readable = {name: "inf" if value == inf else value for name, value in scenario.items()}
        ended = {name: getattr(record, name) for name in _ENDED}
        text = json.dumps({"scenario": readable, **ended, SEAL: _seal(ended)}, allow_nan=False)
        put_text(self._runs / f"{key}.json", text)


@contextmanager
def opened(folder: str | PathLike[str] | None) -> Iterator[RunStore]:
    """Open the store of a folder; without a folder, a temporary store that is deleted on exit."""
    if folder is not None:
        yield RunStore(Path(folder))
        return
    with TemporaryDirectory(prefix="pagesim-") as temporary:
        yield RunStore(Path(temporary))


def _read(file: Path) -> Any:
    """Return a file's JSON; None if the file does not exist or is not valid JSON."""
    try:
        return parse_json(read_text(file))
    except (FileNotFoundError, ValueError):
        return None
    except OSError as error:
        raise PagesimError(f"{file}: cannot be read ({error.strerror})") from None

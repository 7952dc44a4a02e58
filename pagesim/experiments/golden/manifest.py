"""Manifest: the list of golden logs and the options with which pagesim replays each of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pagesim.errors import PagesimError, brief, reason
from pagesim.setup.reading import parse_toml, read_text


@dataclass(frozen=True)
class GoldenLog:
    """One golden log: its files, its trace, and how to reproduce it.

    Attributes:
        name: the log's files are ``NAME.steps.parquet``, ``NAME.batches.parquet``, ``NAME.requests.parquet``.
        engine: engine and release that made the decisions.
        tables: file of each table, by the table's name (``steps``, ``batches``, ``requests``).
        trace: file with the requests.
        arrivals: keywords of `pagesim.make_trace`, such as ``rate`` in requests/s; empty if the trace
            contains arrival times.
        n: samples of every request; None if the trace contains them.
        policy: pagesim's policy for this engine.
        options: keywords of `pagesim.simulate`, including those shared by all logs of the manifest.
        without_flush: whether the log was recorded without the engine's own loop, so that it lacks the row
            of the empty schedule that ends a busy period.
        last_sample_first: whether the log lists a request's samples as vLLM 0.2 stores them: first the
            sequence that ran the prompt, which is the last sample, then those forked from it.
        put_off: trace rows to delay by a picosecond. An iteration was decided at the very instant of their
            arrival; the log's clock, a sum of floats, was slightly early, so only the next iteration saw
            the request.
        not_compared: columns of the log, as ``TABLE.COLUMN``, with the reason why each is not compared.
    """

    name: str
    engine: str
    tables: dict[str, Path]
    trace: Path
    arrivals: dict[str, Any]
    n: int | None
    policy: str
    options: dict[str, Any]
    without_flush: bool
    last_sample_first: bool
    put_off: tuple[int, ...]
    not_compared: dict[str, str]

    @property
    def missing(self) -> Path | None:
        """The log's first missing file; None if all exist."""
        return next((file for file in (self.trace, *self.tables.values()) if not file.is_file()), None)


class _Entry(BaseModel):
    """One log's table in the manifest; see `GoldenLog`."""

    model_config = ConfigDict(extra="forbid")

    engine: str
    tables: tuple[str, ...] = ("steps", "requests")
    trace: str
    arrivals: dict[str, Any] = Field(default_factory=dict)
    n: int | None = Field(None, ge=1)
    policy: str
    options: dict[str, Any] = Field(default_factory=dict)
    without_flush: bool = False
    last_sample_first: bool = False
    put_off: tuple[int, ...] = ()
    not_compared: dict[str, str] = Field(default_factory=dict)


class _Manifest(BaseModel):
    """The whole manifest: the folder of the logs, the options that they share, and the logs."""

    model_config = ConfigDict(extra="forbid")

    folder: str = "."
    options: dict[str, Any] = Field(default_factory=dict)
    log: dict[str, _Entry]


def read_manifests(folder: Path) -> list[GoldenLog]:
    """Return the logs of every manifest ``*.toml`` in a folder, in the order of manifests and logs.

    Raises:
        PagesimError: the folder has no manifest, two logs have the same name, or as for `read_manifest`.
    """
    files = sorted(folder.glob("*.toml"))
    if not files:
        raise PagesimError(f"{folder}: holds no manifest of golden logs (*.toml)")
    found: dict[str, GoldenLog] = {}
    for file in files:
        for log in read_manifest(file):
            if log.name in found:
                raise PagesimError(f"{file}: log {log.name} is in another manifest as well")
            found[log.name] = log
    return list(found.values())


def read_manifest(file: Path) -> list[GoldenLog]:
    """Return the logs of a manifest, without checking that their files exist.

    Raises:
        PagesimError: the file cannot be read or is not TOML, or a field is missing, unknown or ill-typed.
    """
    try:
        manifest = _Manifest.model_validate(parse_toml(read_text(file)))
    except OSError as error:
        raise PagesimError(f"{file}: cannot be read ({error.strerror})") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise PagesimError(f"{file}: {where} is {brief(first['input'], 200)}: {first['msg']}") from None
    except ValueError as error:
        raise PagesimError(f"{file}: is no TOML file: {reason(error)}") from None
    folder = (file.parent / manifest.folder).resolve()
    return [
        GoldenLog(
            **entry.model_dump(exclude={"tables", "trace", "options"}),
            name=name,
            tables={table: folder / f"{name}.{table}.parquet" for table in entry.tables},
            trace=(folder / entry.trace).resolve(),
            options=_located({**manifest.options, **entry.options}, folder),
        )
        for name, entry in manifest.log.items()
    ]


def _located(options: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the options, with a model file in the logs' folder replaced by its absolute path."""
    model = str(options.get("model", ""))
    return {**options, "model": str((folder / model).resolve())} if model.endswith(".toml") else options

"""Manifest: which golden logs there are, and with which options pagesim replays each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pagesim.errors import PagesimError, brief, reason
from pagesim.setup.reading import parse_toml, read_text


@dataclass(frozen=True)
class GoldenLog:
    """One golden log: its files, its trace, and what reproduces it.

    Attributes:
        name: the log's files are ``NAME.steps.parquet``, ``NAME.batches.parquet``, ``NAME.requests.parquet``.
        engine: whose decisions they are, with the release.
        tables: each of the log's tables by its name (``steps``, ``batches``, ``requests``), and its file.
        trace: the file of its requests.
        arrivals: keywords of `pagesim.make_trace`, such as ``rate`` in requests/s; none where the trace
            recorded them.
        n: samples of every request; None where the trace says how many.
        policy: the policy of pagesim that decides as the engine.
        options: keywords of `pagesim.simulate`, those that all of a manifest's logs have among them.
        without_flush: the log was driven without the engine's own loop, and has no row of the empty schedule
            with which that ends a busy period.
        last_sample_first: the log lists a request's samples as vLLM 0.2 holds them: the sequence that ran the
            prompt, which is the last sample, and then those that were forked from it.
        put_off: rows of the trace that arrive a picosecond later than it says. An iteration was decided at
            that very instant; the log's clock, a sum of floats, fell short of it, and the next iteration saw
            the request.
        not_compared: columns of the log, as ``TABLE.COLUMN``, and why each is not compared.
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
        """The first of its files that is absent; None where all are there."""
        return next((file for file in (self.trace, *self.tables.values()) if not file.is_file()), None)


class _Entry(BaseModel):
    """A log's table in the manifest; see `GoldenLog`."""

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
    """The file as a whole: where the logs lie, and the options that all of them have."""

    model_config = ConfigDict(extra="forbid")

    folder: str = "."
    options: dict[str, Any] = Field(default_factory=dict)
    log: dict[str, _Entry]


def read_manifests(folder: Path) -> list[GoldenLog]:
    """Return the logs of every manifest, ``*.toml``, of a folder; manifests and logs in their order.

    Raises:
        PagesimError: the folder has no manifest, two logs have one name, or as `read_manifest`.
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
    """Return the logs of a manifest; whether their files are there is not looked at.

    Raises:
        PagesimError: the file cannot be read, is no TOML, or a field is missing, unknown or of another type.
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
    """Return options with a model that is a file of the logs' folder named by its place."""
    model = str(options.get("model", ""))
    return {**options, "model": str((folder / model).resolve())} if model.endswith(".toml") else options

"""Where operator tables are: the package, a system's folder, and which version's table counts."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pagesim.errors import PagesimError, brief

PACKAGE = "aiconfigurator_core"
"""The package of operator tables; its distribution is ``aiconfigurator-core``."""

NOTICE = "AIConfigurator's operator tables, © NVIDIA, Apache-2.0, changed"
"""Whose measurements they are, as every profile made of them says."""

How = Literal["asked", "reused", "older", "newer", "peer"]

_RELEASE = re.compile(r"(\d+(?:\.\d+)*)(?:rc(\d+))?")

_MOST_BYTES = 1 << 20


class Found(NamedTuple):
    """A table's file, and how it was come by.

    Attributes:
        file: a Parquet file.
        family, name: of the table, e.g. ``gemm`` and ``gemm_perf``.
        version: of the engine, in whose folder the file is.
        wanted: the version that was asked for.
        how: ``asked``: it is that one; ``reused``: the package says that the table of another version is to
            be used; ``older``: the newest before it; ``newer``: there is none before it, the oldest after it;
            ``peer``: it is another engine's.
        backend: whose it is.
    """

    file: Path
    family: str
    name: str
    version: str
    wanted: str
    how: How
    backend: str = "vllm"

    @property
    def note(self) -> str:
        """What a user should know of it, a sentence; nothing if it is what was asked for."""
        if self.how == "asked":
            return ""
        if self.how == "peer":
            return (
                f"{self.name} is of {self.backend} {self.version}: the engine's own lacks these, and both "
                "run the same library's kernel"
            )
        why = {
            "reused": "as the tables' own list of reuses says",
            "older": "the newest before it",
            "newer": "there is no older one: it may be faster than the release that was asked for",
        }[self.how]
        return f"{self.name} is of {self.version} and not {self.wanted}: {why}"


def tables_folder(tables: Path | None = None) -> Path:
    """Return the folder that holds ``data`` and a file of each system.

    Args:
        tables: a folder of one's own, the package's or its ``systems``; the installed package when left out.

    Raises:
        PagesimError: there is no such folder, or the package is not installed.
    """
    if tables is None:
        spec = find_spec(PACKAGE)
        places = list(spec.submodule_search_locations or ()) if spec else []
        if not places:
            raise PagesimError(
                f"operator tables need {PACKAGE.replace('_', '-')}, which is not installed; pip install "
                "'.[operators]' in the checkout, or name a folder that holds its systems with --tables"
            )
        tables = Path(places[0])
    for folder in (tables, tables / "systems", tables / PACKAGE / "systems"):
        if (folder / "data").is_dir():
            return folder
    raise PagesimError(f"tables is {tables}; it must be a folder that holds systems/data, or data")


class Store:
    """The tables of one system and engine.

    Args:
        system: e.g. ``h100_sxm``.
        backend: the engine: ``vllm``, ``sglang`` or ``trtllm``.
        version: of the engine; the package's current one when left out.
        tables: see `tables_folder`.

    Attributes:
        system, backend, version: as given or found.

    Raises:
        PagesimError: there is no such system or backend, or no version is named and none is current.
    """

    def __init__(
        self, system: str, backend: str = "vllm", version: str | None = None, tables: Path | None = None
    ) -> None:
        self.folder = tables_folder(tables)
        known = sorted(each.name for each in (self.folder / "data").iterdir() if each.is_dir())
        if system not in known:
            raise PagesimError(f"system is {system!r}; it must be one of {', '.join(known)}")
        self._data = self.folder / "data" / system
        backends = sorted(
            {each.name for each in self._data.glob("*/*") if each.is_dir()} - {"nccl", "oneccl"}
        )
        if backend not in backends:
            raise PagesimError(
                f"backend is {backend!r}; {system} has tables of {', '.join(backends) or 'none'}"
            )
        self.system, self.backend = system, backend
        self.version = version or self.current()

    @property
    def bandwidth(self) -> float:
        """Peak bandwidth of the GPU's memory, bytes a second, as the system's own file has it."""
        found = self._said("gpu", "mem_bw")
        try:
            bandwidth = float(found)  # YAML reads 2e12 as a text
        except (TypeError, ValueError):
            bandwidth = 0.0
        if not 0 < bandwidth < 1e18:
            raise PagesimError(
                f"{self.folder / self.system}.yaml: gpu.mem_bw is {brief(found)}; it must be bytes a second"
            )
        return bandwidth

    def _said(self, part: str, name: str) -> Any:
        file = self.folder / f"{self.system}.yaml"
        found = _yaml(file) if file.is_file() else None
        of = found.get(part) if isinstance(found, dict) else None
        return of.get(name) if isinstance(of, dict) else None

    def table(self, family: str, name: str) -> Found | None:
        """Return the table of the version, else the one that it reuses, else an older one, else a newer.

        Args:
            family: e.g. ``attention``.
            name: e.g. ``context_attention_perf``.
        """
        found = self.candidates(family, name)
        return found[0] if found else None

    def candidates(self, family: str, name: str) -> list[Found]:
        """Return all tables that may stand for the version's, the best first, as `table` orders them."""
        return _candidates(self._data / family / self.backend, family, name, self.version)

    def peers(self, family: str, name: str) -> list[Found]:
        """Return the newest table of each other engine, by the engine's name."""
        folders = sorted((self._data / family).iterdir())
        tables = [_candidates(folder, family, name, "") for folder in folders if folder.name != self.backend]
        return [each[0]._replace(wanted=self.version, how="peer") for each in tables if each]

    def nccl(self) -> Found | None:
        """Return the table of NCCL's collectives, of the version that the system's file names."""
        wanted = str(self._said("misc", "nccl_version") or "0")
        found = _candidates(self._data / "comm" / "nccl", "comm", "nccl_perf", wanted)
        return found[0] if found else None

    def current(self) -> str:
        """Return the version of the engine that the package has full sets of tables for.

        Raises:
            PagesimError: it names none.
        """
        said = _yaml(self.folder / "query_versions.yaml")
        try:
            own = said.get("overrides", {}).get(self.system, {})
            return str((own.get(self.backend) or said["defaults"][self.backend])["current"])
        except (AttributeError, KeyError, TypeError):
            raise PagesimError(
                f"{self.folder / 'query_versions.yaml'}: names no current version of {self.backend} for "
                f"{self.system}; name one with --version"
            ) from None


def _candidates(folder: Path, family: str, name: str, wanted: str) -> list[Found]:
    versions: list[tuple[str, How]] = []
    if (folder / wanted / f"{name}.parquet").is_file():
        versions.append((wanted, "asked"))
    reused = _reused(folder / wanted / "reuse.yaml", name)
    if reused is not None:
        if not (folder / reused / f"{name}.parquet").is_file():
            raise PagesimError(
                f"{folder / wanted / 'reuse.yaml'}: {name} is to be of {reused}, which is not there"
            )
        versions.append((reused, "reused"))
    there = [each.parent.name for each in folder.glob(f"*/{name}.parquet")]
    # What is no release is a drop of single operators: it counts only where it is asked for by its name.
    releases = sorted((key, each) for each in there if (key := _key(each)) is not None)
    asked = _key(wanted)
    versions += [(each, "older") for key, each in reversed(releases) if asked is None or key <= asked]
    versions += [(each, "newer") for key, each in releases if asked is not None and key > asked]
    best: dict[str, How] = {}
    for version, how in versions:
        best.setdefault(version, how)
    return [
        Found(folder / version / f"{name}.parquet", family, name, version, wanted, how, folder.name)
        for version, how in best.items()
    ]


def _key(version: str) -> tuple[tuple[int, ...], float] | None:
    """Return what releases are ordered by: numbers, and a candidate before its release; None for others."""
    found = _RELEASE.fullmatch(version)
    if found is None:
        return None
    numbers = tuple(int(each) for each in found[1].split("."))
    return numbers, float(found[2]) if found[2] else float("inf")


def _reused(file: Path, name: str) -> str | None:
    """Return the version whose table is to be used, if the file says so."""
    if not file.is_file():
        return None
    said = _yaml(file)
    entries = said.get("reuse") if isinstance(said, dict) else None
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and entry.get("table") == name:
            version = entry.get("from_version")
            if not isinstance(version, str) or "/" in version or ".." in version:
                raise PagesimError(
                    f"{file}: from_version of {name} is {brief(version)}; it must be a version"
                )
            return version
    return None


def _yaml(file: Path) -> Any:
    try:
        import yaml
    except ImportError:
        raise PagesimError(
            "operator tables need pyyaml, which is not installed; pip install '.[operators]' in the checkout"
        ) from None
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise PagesimError(f"{file}: has {file.stat().st_size} bytes; at most {_MOST_BYTES} are read")
        return yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise PagesimError(f"{file}: cannot be read ({error.strerror})") from None
    except (UnicodeDecodeError, yaml.YAMLError, RecursionError):
        raise PagesimError(f"{file}: is no YAML") from None

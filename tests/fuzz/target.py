"""Target: a reader of files, good files for it, and what is then done with what was read."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pagesim as ps

T = TypeVar("T")

TESTS = Path(__file__).parents[1]


class MadeWhenNeeded(Mapping[str, bytes]):
    """Files that take long to make: the first look at one of them makes all."""

    def __init__(self, make: Callable[[], Mapping[str, bytes]]) -> None:
        self._made = cache(make)

    def __getitem__(self, name: str) -> bytes:
        return self._made()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._made())

    def __len__(self) -> int:
        return len(self._made())


@dataclass(frozen=True)
class Target:
    """A reader.

    Attributes:
        name: what it reads.
        files: good ones, by name.
        mutated: which of them are not left good; any of them if empty.
        read: reads a folder of such files and uses what it found.
    """

    name: str
    files: Mapping[str, bytes]
    mutated: tuple[str, ...]
    read: Callable[[Path], object]

    def put(self, folder: Path, changed: Mapping[str, bytes] | None = None) -> None:
        """Put the files into a folder, some of them changed."""
        for name, data in {**self.files, **(changed or {})}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)


def of_tests(path: str) -> Any:
    """Return a file of other tests as a module: what is good there is good here."""
    spec = importlib.util.spec_from_file_location(path.replace("/", "_"), TESTS / f"{path}.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def one_line(error: BaseException) -> None:
    """Make sure that an error is a sentence."""
    assert str(error)
    assert str(error).isprintable(), f"not one line: {error!r}"


def again(found: T | None) -> T:
    """Return what was kept of a run; what is damaged counts as refused, for the run is repeated."""
    if found is None:
        raise ps.PagesimError("damaged: the run is repeated")
    return found

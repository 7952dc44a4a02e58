"""An input that means harm: files and arguments for one run of ``pagesim``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

Content = bytes | Callable[[Path], object]
"""What a file holds, or what makes it under the name that it gets: a pipe, a link, a folder."""


@dataclass(frozen=True)
class Case:
    """One input.

    Attributes:
        name: of the kind of harm, for the table.
        argv: behind ``pagesim``; ``{}`` stands for the case's folder, in which the command runs.
        files: by their path in it.
        expects: ``any`` way to end that is no crash; ``refused``: exit code 2; ``done``: exit code 0;
            ``says:WORD``: refused, or the word is printed.
    """

    name: str
    argv: tuple[str, ...]
    files: Mapping[str, Content] = field(default_factory=dict)
    expects: str = "any"

    def put(self, folder: Path) -> None:
        """Make the files in a folder."""
        for name, content in self.files.items():
            if isinstance(content, bytes):
                (folder / name).write_bytes(content)
            else:
                content(folder / name)

    def arguments(self, folder: Path) -> list[str]:
        """Return the arguments, the folder's name put in."""
        return [each.replace("{}", str(folder)) for each in self.argv]


def fifo(file: Path) -> None:
    """Make a pipe that nothing writes to."""
    os.mkfifo(file)


def link(target: str) -> Callable[[Path], object]:
    """Return what makes a link."""
    return lambda file: file.symlink_to(target)


def folder(file: Path) -> None:
    """Make an empty folder."""
    file.mkdir(parents=True, exist_ok=True)

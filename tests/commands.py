"""The command line in this process, for every room's tests."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from pagesim.cli.main import app

HANGS_AFTER_S = 300
"""A command that takes longer than this is taken to hang, however busy the machine is."""


@dataclass(frozen=True)
class Outcome:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What standard output holds, if it is JSON and nothing else."""
        return json.loads(self.out, parse_constant=_refuse)


Cli = Callable[..., Outcome]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Return a function that runs ``pagesim`` with the arguments given to it."""

    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["pagesim", *map(str, arguments)])
        capsys.readouterr()
        code = 0
        with _limited():
            try:
                app()
            except SystemExit as end:
                code = int(end.code or 0)
        return Outcome(code, *capsys.readouterr())

    return run


@pytest.fixture
def succeeds(cli: Cli) -> Cli:
    """Return a function that runs ``pagesim`` and expects it to end well."""

    def run(*arguments: object) -> Outcome:
        outcome = cli(*arguments)
        assert outcome.code == 0, outcome.err
        return outcome

    return run


@pytest.fixture
def refused(cli: Cli) -> Callable[..., str]:
    """Return a function that runs ``pagesim``, expects bad input, and returns the sentence that says so."""

    def run(*arguments: object) -> str:
        outcome = cli(*arguments)
        assert outcome.code == 2, outcome
        assert outcome.out == ""
        assert outcome.err.startswith("pagesim: ")
        assert outcome.err.count("\n") == 1, "one sentence on one line"
        return outcome.err.removeprefix("pagesim: ").rstrip("\n")

    return run


@contextmanager
def _limited() -> Iterator[None]:
    def over(*_: object) -> None:
        raise TimeoutError(f"the command hangs: it took more than {HANGS_AFTER_S} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(HANGS_AFTER_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")

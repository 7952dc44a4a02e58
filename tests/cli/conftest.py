"""The command line as the tests use it: in this process where they can, in one of its own where they must."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import pagesim
from pagesim.cli.main import app

HANGS_AFTER_S = 60
"""A command that takes longer than this is taken to hang."""

HEADER = "request_id,arrival_s,prompt_tokens,output_tokens\n"


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


@pytest.fixture
def trace_file(tmp_path: Path) -> Callable[[str | bytes], Path]:
    """Return a function that writes the rows of a trace (or bytes as they are) into a file."""

    def write(rows: str | bytes, name: str = "trace.csv") -> Path:
        file = tmp_path / name
        file.write_bytes((HEADER + rows).encode() if isinstance(rows, str) else rows)
        return file

    return write


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """Return an environment in which another process finds this pagesim, installed or not."""
    here = str(Path(pagesim.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))}


PROGRAM = """
import signal, sys
from pagesim.cli.main import app
# A shell's background job ignores interrupts, and so would its children.
signal.signal(signal.SIGINT, signal.default_int_handler)
print("ready", file=sys.stderr, flush=True)
app()
"""


@pytest.fixture(scope="session")
def start(environment: dict[str, str]) -> Callable[..., subprocess.Popen[str]]:
    """Return a function that starts ``pagesim`` in a process of its own.

    With ``announced=True`` its first line on standard error says that Python has started.
    """

    def run(*arguments: object, announced: bool = False, **options: Any) -> subprocess.Popen[str]:
        program = PROGRAM if announced else "from pagesim.cli.main import app; app()"
        return subprocess.Popen(
            [sys.executable, "-c", program, *map(str, arguments)],
            **{
                "stdout": subprocess.PIPE,
                "stderr": subprocess.PIPE,
                "text": True,
                **options,
                "env": {**environment, **options.get("env", {})},
            },
        )

    return run


@pytest.fixture
def in_a_process(start: Callable[..., subprocess.Popen[str]]) -> Cli:
    """Return a function that runs ``pagesim`` in a process of its own and waits for its end."""

    def run(*arguments: object, **options: Any) -> Outcome:
        process = start(*arguments, **options)
        try:
            out, err = process.communicate(timeout=HANGS_AFTER_S)
        finally:
            process.kill()
        return Outcome(process.returncode, out or "", err or "")

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

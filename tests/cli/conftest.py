"""The command line as its tests use it: files for it, and a process of its own where one is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pagesim
from tests.commands import HANGS_AFTER_S, Cli, Outcome

HEADER = "request_id,arrival_s,prompt_tokens,output_tokens\n"


@pytest.fixture
def trace_file(tmp_path: Path) -> Callable[[str | bytes], Path]:
    """Return a function that writes the rows of a trace (or bytes as they are) into a file."""

    def write(rows: str | bytes, name: str = "trace.csv") -> Path:
        file = tmp_path / name
        file.write_bytes((HEADER + rows).encode() if isinstance(rows, str) else rows)
        return file

    return write


@pytest.fixture
def conversations(tmp_path: Path) -> Path:
    """Return a trace of Mooncake's format in which two conversations take turns; each turn adds a block."""
    file = tmp_path / "conversations.jsonl"
    rows = [
        {
            "timestamp": 1000 * (2 * turn + each),
            "input_length": 512 * (turn + 1),
            "output_length": 5,
            "hash_ids": [10 * each + block for block in range(turn + 1)],
        }
        for turn in range(4)
        for each in range(2)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


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

"""What the documentation shows is what happens: its programs are run, its commands understood."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pagesim.cli.main import app  # noqa: E402
from pagesim.kernels.bench.run import Outcome  # noqa: E402

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^    (?:pip install .* && )?(pagesim bench [^#\n]*)", re.MULTILINE)


def section(file: str, heading: str | None = None) -> str:
    """Return a file's text, or what stands under one of its headings of the second order."""
    text = (ROOT / file).read_text(encoding="utf-8")
    return (
        text if heading is None else re.split(r"^## ", text.partition(f"\n## {heading}\n")[2], flags=re.M)[0]
    )


SECTIONS = {
    "docs/reference/kernels.md": ("docs/reference/kernels.md", None),
    "docs/how-to/bench.md": ("docs/how-to/bench.md", None),
    "docs/how-to/usage.md": ("docs/how-to/usage.md", "Kernels"),
}
COMMANDS = {
    command.strip(): name for name, where in SECTIONS.items() for command in COMMAND.findall(section(*where))
}


@pytest.mark.slow
def test_its_blocks_are_one_program_that_prints_what_is_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = FENCE.findall(section("docs/reference/kernels.md"))
    assert blocks
    assert {kind for kind, _ in blocks} <= {"python", ""}
    globals_: dict[str, object] = {"__name__": "documentation"}
    printed = ""
    for kind, block in [*blocks, ("python", "")]:
        if kind == "":
            assert printed == block
            printed = ""
            continue
        assert not printed, "what is printed is shown"
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(block, "kernels.md", "exec"), globals_)
        printed = output.getvalue()


def test_there_are_commands():
    assert len(COMMANDS) >= 5
    assert {"docs/how-to/bench.md", "docs/how-to/usage.md"} <= set(COMMANDS.values())


@pytest.mark.parametrize("command", COMMANDS)
def test_its_commands_ask_for_points(command, monkeypatch, tmp_path):
    """What they measure takes a GPU, or minutes; what they ask for is worked out, and nothing is measured."""
    asked = []

    def run_points(points, device, out, **how):
        asked.extend(points)
        return Outcome([], 0, len(points))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pagesim.kernels.bench.run.run_points", run_points)
    monkeypatch.setattr("pagesim.kernels.bench.selection.require_device", lambda device: None)
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    with pytest.raises(SystemExit) as end:
        app()
    assert not end.value.code
    assert asked


def test_the_tables_of_the_h100_are_those_of_its_rows():
    pages = ROOT / "docs"
    printed = subprocess.run(
        [sys.executable, pages / "make_kernels.py", pages / "validation" / "h100.parquet"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    page = (pages / "validation" / "kernels.md").read_text(encoding="utf-8")
    tables = printed.strip().split("\n\n")
    assert len(tables) == 4
    assert all(table in page for table in tables)

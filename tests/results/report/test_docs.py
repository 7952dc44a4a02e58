"""docs/report.md: its commands run one after another, and its program prints what is shown."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from pathlib import Path

import pytest

from pagesim.cli.main import app
from pagesim.results.report import page, tables
from pagesim.results.report.cells import MOST_CELLS

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    (pagesim (?:[^\n]*\\\n)*[^\n]*)$", TEXT, re.MULTILINE)


@pytest.mark.slow
def test_its_commands_run_and_leave_their_pages(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for command in COMMANDS:
        monkeypatch.setattr(sys, "argv", shlex.split(command.replace("\\\n", " ")))
        with pytest.raises(SystemExit) as end:
            app()
        assert not end.value.code
    pages = {file.name for file in Path("out").glob("*.html")}
    assert pages == {"first.html", "both.html", "closer.html", "tier.html", "clusters.html"}


def test_its_program_prints_what_is_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ((program, shown),) = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", TEXT, re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program, "docs/report.md", "exec"), {"__name__": "documentation"})
    assert printed.getvalue() == shown


def test_it_tells_the_bounds_that_there_are():
    assert f"first {MOST_CELLS:,} blocks" in TEXT
    assert f"| {tables.MOST_POINTS} instants" in TEXT
    assert f"| {tables.MOST_REQUESTS:,} a system" in TEXT
    assert f"| {tables.QUANTILES + 1} quantiles" in TEXT
    waterfall = (ROOT / "pagesim" / "results" / "report" / "waterfall.js").read_text(encoding="utf-8")
    (lines,) = re.findall(r"MOST_LINES = (\d+)", waterfall)
    assert f"{lines} at a time" in TEXT
    assert f"{page.INSTANTS} when left out" in TEXT


def test_its_picture_is_small():
    assert (ROOT / "docs" / "report.png").stat().st_size < 150_000

"""docs/how-to/report.md: its commands run one after another, and its program prints what is shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pagesim.results.report import page, run_tables
from pagesim.results.report.cells import MOST_CELLS
from tests.pages import ROOT, check_programs, commands_in, text_of

TEXT = text_of("docs/how-to/report.md")


@pytest.mark.slow
def test_its_commands_run_and_leave_their_pages(tmp_path, monkeypatch, succeeds):
    monkeypatch.chdir(tmp_path)
    for words in commands_in(TEXT):
        succeeds(*words)
    pages = {file.name for file in Path("out").glob("*.html")}
    assert pages == {"first.html", "both.html", "closer.html", "tier.html", "clusters.html"}


def test_its_program_prints_what_is_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert check_programs(TEXT, "docs/how-to/report.md") == 1


def test_it_tells_the_bounds_that_there_are():
    assert f"first {MOST_CELLS:,} blocks" in TEXT
    assert f"| {run_tables.MOST_POINTS} instants" in TEXT
    assert f"| {run_tables.MOST_REQUESTS:,} a system" in TEXT
    assert f"| {run_tables.QUANTILES + 1} quantiles" in TEXT
    waterfall = (ROOT / "pagesim" / "results" / "report" / "waterfall.js").read_text(encoding="utf-8")
    (lines,) = re.findall(r"MOST_LINES = (\d+)", waterfall)
    assert f"{lines} at a time" in TEXT
    assert f"{page.INSTANTS} when left out" in TEXT


def test_its_picture_is_small():
    assert (ROOT / "docs" / "report.png").stat().st_size < 150_000

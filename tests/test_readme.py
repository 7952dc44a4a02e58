"""The README: its first commands draw their pictures soon, and what it counts and quotes is so."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from pagesim.experiments.golden.manifest import read_manifests

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")

MOST_S = 60
"""Seconds from one of the first commands to its picture, after installation."""

MOST_LINES = 250


def section(heading: str) -> str:
    return TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "said", "begins"),
    [
        (0, r"later `([^`]+\.html)` plays it", b"<!doctype html>"),
        (1, r"The figure is `([^`]+\.png)`", b"\x89PNG"),
    ],
)
def test_its_first_commands_end_in_a_picture_within_a_minute(
    place: int, said: str, begins: bytes, tmp_path: Path
):
    command = re.findall(r"^    (pagesim [^\n]*)$", TEXT, re.MULTILINE)[place]
    picture = re.findall(said, TEXT)[0]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    begun = time.monotonic()
    words = shlex.split(command)[1:]
    subprocess.run([sys.executable, "-m", "pagesim", *words], cwd=tmp_path, env=environment, check=True)
    assert time.monotonic() - begun < MOST_S
    assert (tmp_path / picture).read_bytes().startswith(begins)


def test_it_counts_the_read_manifests_that_there_are():
    counted = dict(
        re.findall(r"^\| (.*?) \| (\d+) \|$", section("What is exact, and how that is shown"), re.MULTILINE)
    )
    engines = Counter(log.engine for log in read_manifests(ROOT / "tests" / "golden"))
    for engines_said, number in counted.items():
        if engines_said.startswith("the PagedAttention paper"):
            own = [engine for engine in engines if engine.startswith("paper's")]
        elif ": " in engines_said or "," not in engines_said:
            own = [engines_said.partition(":")[0]]
        else:
            own = [f"vLLM {release}" for release in engines_said.removeprefix("vLLM ").split(", ")]
        assert sum(engines.pop(engine) for engine in own) == int(number), engines_said
    assert not engines, "every engine has its row"
    logs = read_manifests(ROOT / "tests" / "golden")
    there = [log for log in logs if all((ROOT / "tests") in file.parents for file in log.tables.values())]
    assert f"`{len(there)} equal, 0 different, {len(logs) - len(there)} absent`" in TEXT
    assert f"all {len(logs)} are equal" in TEXT


def test_its_accuracies_are_those_of_the_page_on_accuracy():
    page = (ROOT / "docs" / "validation" / "accuracy.md").read_text(encoding="utf-8")
    rows = [row for row in section("How far off the seconds are").splitlines() if row.startswith("| ")][1:]
    assert len(rows) == 4
    for row in rows:
        for number in re.findall(r"[+−]?\d+(?:\.\d+)? %|\d+ to \d+ %", row):
            assert number in page, number


def test_it_stays_short():
    assert len(TEXT.splitlines()) < MOST_LINES

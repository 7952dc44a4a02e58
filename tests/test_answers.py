"""Each page of docs/answers says what its command prints, and shows what it draws."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from PIL import Image, ImageChops, ImageStat

from tests.pages import COMMAND, module_of

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
INDEX = DOCS / "answers" / "README.md"

MOST_BYTES = 100_000
"""Of a picture."""

MOST_S = 60
"""Seconds that a page's command may take."""

MOST_DIFFERENCE = 3.0
"""Of 255, mean over a picture: what fewer colours make of it."""

PAGES = [INDEX.with_name(name) for name in re.findall(r"\]\(([\w-]+\.md)\)", INDEX.read_text("utf-8"))]
SHOWN = re.compile(r"^```\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PICTURE: re.Pattern[str] = module_of("docs/make_outputs.py").PICTURE
ANSWER = re.compile(r"^## Answer\n\n(.*?)^## What it does not say\n", re.DOTALL | re.MULTILINE)

NUMBER = r"\d[\d,]*(?:\.\d+)?"
SAID = re.compile(rf"(?<![\w.-]){NUMBER}(?![\w-])")


class Answer(NamedTuple):
    """A page: its command, parts of what it prints, the stored picture, the one drawn, and its sentences."""

    command: str
    shown: list[str]
    picture: str
    drawn: str
    text: str


def read(page: Path) -> Answer:
    text = page.read_text("utf-8")
    (command,), (picture,), (answer,) = (each.findall(text) for each in (COMMAND, PICTURE, ANSWER))
    shown = SHOWN.findall(text)
    assert shown
    return Answer(command, shown, *picture, answer)


def printed_by(command: str, folder: Path) -> str:
    """Run a page's command in an empty folder, as from a shell, and return what it prints."""
    arguments = shlex.split(command.replace("\\\n", " "))[1:]
    environment = {**os.environ, "COLUMNS": "100", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "pagesim", *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=MOST_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def lines_of(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").splitlines()]


def numbers(pattern: str | re.Pattern[str], text: str) -> set[str]:
    return {found.strip(",").replace(",", "") for found in re.findall(pattern, text)}


def test_the_index_lists_every_page_once():
    assert sorted(PAGES) == sorted(set(DOCS.glob("answers/*.md")) - {INDEX})
    assert len(PAGES) == 12


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_a_question_with_its_source_an_answer_and_its_limits(page: Path):
    text = page.read_text("utf-8")
    assert text.startswith("# ")
    assert text.splitlines()[0].endswith("?")
    assert "\n**Asked** " in text
    answer = read(page)
    assert answer.picture == f"{page.stem}.png"
    assert (page.parent / answer.picture).stat().st_size < MOST_BYTES
    assert text.partition("## What it does not say\n")[2].count("\n- ") >= 3


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_an_answer_has_no_number_that_its_page_does_not_show(page: Path):
    answer = read(page)
    shown = numbers(NUMBER, "\n".join([answer.command, *answer.shown]))
    assert numbers(SAID, answer.text)
    assert numbers(SAID, answer.text) <= shown | ALSO_PRINTED.get(page.stem, set())


ALSO_PRINTED = {"gpus": {"426", "6800"}}
"""Numbers in sentences that the command prints on lines too long for a page."""


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_its_command_prints_and_draws_what_the_page_shows(page: Path, tmp_path: Path):
    answer = read(page)
    printed = printed_by(answer.command, tmp_path)
    rows = lines_of(printed)
    for part in answer.shown:
        at = 0
        for line in lines_of(part):
            assert line in rows[at:], "the lines of an output stand in its order"
            at = rows.index(line, at) + 1
    assert numbers(SAID, answer.text) <= numbers(NUMBER, printed + answer.command)
    stored = Image.open(page.parent / answer.picture).convert("RGB")
    drawn = Image.open(tmp_path / answer.drawn).convert("RGB")
    assert stored.size == drawn.size
    differences = ImageStat.Stat(ImageChops.difference(stored, drawn)).mean
    assert max(differences) < MOST_DIFFERENCE, f"run: python docs/make_outputs.py {page}"

"""Make the pictures of docs/answers again: run the command of each page, and store the picture that it draws.

Run it from anywhere after a change of what the pages show: python docs/make_answers.py [PAGE…]
It prints what the commands print, for the pages to quote.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from PIL import Image

FOLDER = Path(__file__).parent / "answers"
INDEX = FOLDER / "README.md"

COMMAND = re.compile(r"^    (pagesim (?:[^\n]*\\\n)*[^\n]*)$", re.MULTILINE)
SHOWN = re.compile(r"^```\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PICTURE = re.compile(r"^!\[[^\]]+\]\(([^)]+\.png)\)\n\n\*Drawn as `([^`]+\.png)`\.", re.MULTILINE)
ANSWER = re.compile(r"^## Answer\n\n(.*?)^## What it does not say\n", re.DOTALL | re.MULTILINE)

COLUMNS = "100"
"""Width of the terminal in which outputs are as the pages show them."""

COLOURS = 64


class Answer(NamedTuple):
    """What a page holds.

    Args:
        command: to be pasted into a shell; lines may go on behind a backslash.
        shown: parts of what it prints.
        picture: the stored picture, beside the page.
        drawn: the file that the command draws, below the folder it is run in.
        text: the sentences of the answer.
    """

    command: str
    shown: list[str]
    picture: str
    drawn: str
    text: str


def pages() -> list[Path]:
    """Return the pages, in the order of the index."""
    return [FOLDER / name for name in re.findall(r"\]\(([\w-]+\.md)\)", INDEX.read_text("utf-8"))]


def read(page: Path) -> Answer:
    """Return what a page holds.

    Raises:
        ValueError: it has not one command, one picture and one answer, or shows no output.
    """
    text = page.read_text("utf-8")
    commands, shown, pictures, answers = (
        pattern.findall(text) for pattern in (COMMAND, SHOWN, PICTURE, ANSWER)
    )
    if not (len(commands) == len(pictures) == len(answers) == 1 and shown):
        raise ValueError(
            f"{page}: needs one command, an output, one picture with its caption, and one answer"
        )
    return Answer(commands[0], shown, *pictures[0], answers[0])


def small(picture: Path) -> Image.Image:
    """Return a picture with few colours, which takes few bytes."""
    return Image.open(picture).convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE)


def main(names: list[str]) -> None:
    """Run the commands of the named pages, or of all, and store their pictures."""
    for page in [FOLDER / f"{name.removesuffix('.md')}.md" for name in names] or pages():
        answer = read(page)
        with tempfile.TemporaryDirectory() as folder:
            print(f"== {page.name}")
            subprocess.run(
                ["bash", "-c", answer.command], cwd=folder, check=True, env={**os.environ, "COLUMNS": COLUMNS}
            )
            small(Path(folder) / answer.drawn).save(FOLDER / answer.picture, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1:])

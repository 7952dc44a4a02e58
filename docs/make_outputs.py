"""Write again what the commands and programs of pages print, and show each line that changed.

Run it after a change of costs or decisions: python docs/make_outputs.py [PAGE…]
Each page's steps run one after another in a new folder; figures that pages of docs/answers name are stored
anew. Sentences that repeat a changed number are for the writer to mend.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from difflib import SequenceMatcher
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.test_docs import STEP, WALKS  # noqa: E402

PICTURE = re.compile(r"^!\[[^\]]+\]\(([^)]+\.png)\)\n\n\*Drawn as `([^`]+\.png)`\.", re.MULTILINE)
"""A stored picture, and the file that the page's command draws."""


def masked(line: str) -> str:
    """Return a line without its numbers and its spacing."""
    return re.sub(r"\d[\d,.]*", "#", " ".join(line.split()))


def likeness(old: str, new: str) -> float:
    """Return how alike two lines are, from 0 to 1: but for their numbers, which tell alike lines apart."""
    shapes = SequenceMatcher(None, masked(old), masked(new)).ratio()
    return 0.96 * shapes + 0.04 * SequenceMatcher(None, old, new).ratio()


def excerpt(shown: list[str], printed: list[str]) -> list[str]:
    """Return the lines of an output that are most like those that a page shows, in their order."""

    def alike(first: int) -> float:
        return sum(map(likeness, shown, printed[first:]))

    first = max(range(max(1, len(printed) - len(shown) + 1)), key=alike)
    if alike(first) > 0.97 * len(shown):
        return printed[first : first + len(shown)]
    found, at = [], 0
    for line in shown:  # with lines left out between them
        at = (
            max(
                range(min(at, len(printed) - 1), len(printed)),
                key=lambda place: likeness(line, printed[place]),
            )
            + 1
        )
        found.append(printed[at - 1])
    return found


def lines_of(text: str) -> list[str]:
    """Return the lines of an output, without what fills them up."""
    return [line.rstrip() for line in text.strip("\n").splitlines()]


def renewed(page: Path) -> str:
    """Run a page's steps in the current folder; return its text with their outputs as they are now."""
    text, at, parts, printed = page.read_text(encoding="utf-8"), 0, [], ""
    names: dict[str, object] = {"__name__": "documentation"}
    columns = "100" if page.parent.name == "answers" else "80"
    for step in STEP.finditer(text):
        command, program, shown = step.groups()
        if command:
            words = shlex.split(command.replace("\\\n", " "), comments=True)
            done = subprocess.run(
                [sys.executable, "-m", *words], env={**os.environ, "COLUMNS": columns},
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            printed = done.stdout
        elif program:
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(compile(program, page, "exec"), names)
            printed = output.getvalue()
        else:
            old, now = lines_of(shown), lines_of(printed)
            if "\n".join(old) not in "\n".join(now):
                new = excerpt(old, now)
                for before, after in zip(old, new, strict=False):
                    if before != after:
                        print(f"{page.name}:\n  - {before}\n  + {after}")
                parts += [text[at : step.start(3)], "\n".join(new), "\n"]
                at = step.end(3)
    return "".join([*parts, text[at:]])


def main(pages: list[str]) -> None:
    """Renew the named pages, or all whose steps a test takes and those of docs/answers."""
    answers = sorted(map(str, (ROOT / "docs" / "answers").glob("*-*.md")))
    for name in pages or (*WALKS, *answers):
        page = ROOT / name
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            text = renewed(page)
            for stored, drawn in PICTURE.findall(text):
                # Few colours take few bytes.
                few = Image.open(drawn).convert("RGB").quantize(64, Image.Quantize.MAXCOVERAGE)
                few.save(page.parent / stored, optimize=True)
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

"""What the documentation shows is what happens: its programs are run, and so are its commands."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from pathlib import Path

import pytest

from pagesim.cli.main import app

ROOT = Path(__file__).parents[1]
PAGES = (
    "docs/clusters.md",
    "docs/extending.md",
    "docs/metrics.md",
    "docs/performance.md",
    "docs/profiles.md",
)
FENCE = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^    (pagesim (?:[^\n]*\\\n)*[^\n]*)$", re.MULTILINE)

NEEDS = {"pagesim profile import": "needs CSV files in Vidur's schema, which are others'"}
"""What some commands need that is not here."""


def commands() -> list[tuple[str, str]]:
    found = [
        (page, command)
        for page in PAGES
        for command in COMMAND.findall((ROOT / page).read_text(encoding="utf-8"))
    ]
    assert len(found) > 5
    return found


@pytest.mark.parametrize("page", [page for page in PAGES if FENCE.search((ROOT / page).read_text("utf-8"))])
def test_its_programs_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    globals_: dict[str, object] = {"__name__": "documentation"}
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        for block in FENCE.findall((ROOT / page).read_text(encoding="utf-8")):
            exec(compile(block, page, "exec"), globals_)
    assert output.getvalue(), "a program of the documentation prints something"


@pytest.mark.parametrize(("page", "command"), commands())
def test_its_commands_run(page, command, tmp_path, monkeypatch, capsys) -> None:
    for beginning, reason in NEEDS.items():
        if command.startswith(beginning):
            pytest.skip(f"{beginning} {reason}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", shlex.split(command.replace("\\\n", " ")))
    with pytest.raises(SystemExit) as end:
        app()
    printed = capsys.readouterr()
    assert not end.value.code, printed.err
    assert printed.out

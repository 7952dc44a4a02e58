"""What docs/live.md shows is what happens: its commands run, and its program prints what is shown."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

import pagesim as ps
from pagesim.cli.main import app

PAGE = (Path(__file__).parents[3] / "docs" / "live.md").read_text(encoding="utf-8")
COMMANDS = [
    command.strip() for command in re.findall(r"^    (pagesim run --device [^#\n]*)", PAGE, re.MULTILINE)
]


@pytest.mark.slow_but("command1")
@pytest.mark.parametrize("command", [each for each in COMMANDS if "--cuda-graphs" not in each])
def test_its_commands_run_and_what_they_run_is_right(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [*shlex.split(command), "--device", "cpu"])
    with pytest.raises(SystemExit) as end:
        app()
    assert not end.value.code
    assert "all within" in capsys.readouterr().out
    if "--out" in command:
        assert ps.load("out/live").summary["swapped_blocks"]["in"] > 0, "it is said that it has to swap"


def test_its_program_prints_what_is_shown(capsys):
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (shown,) = re.findall(r"```\n\n```\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(program, "live.md", "exec"), {})
    assert capsys.readouterr().out == shown


def test_every_column_that_it_names_is_there(live, make_trace):
    steps = live(make_trace(2), {"num_blocks": 60}, check=False).steps
    named = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE)))
    assert {name for name in named if not name.startswith("-")} - {"cuda"} <= set(steps.columns)
    assert len(named) >= 6

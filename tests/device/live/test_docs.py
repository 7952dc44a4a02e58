"""What docs/how-to/live.md shows is what happens: its commands run, and its program prints what is shown."""

from __future__ import annotations

import re

import pytest

import pagesim as ps
from tests.pages import check_programs, commands_in, text_of

PAGE = text_of("docs/how-to/live.md")
COMMANDS = [words for words in commands_in(PAGE) if "--device" in words and "--cuda-graphs" not in words]


@pytest.mark.slow_but("command1")
@pytest.mark.parametrize("command", COMMANDS)
def test_its_commands_run_and_what_they_run_is_right(command, tmp_path, monkeypatch, succeeds):
    monkeypatch.chdir(tmp_path)
    assert "all within" in succeeds(*command, "--device", "cpu").out
    if "--out" in command:
        assert ps.load("out/live").summary["swapped_blocks"]["in"] > 0, "it is said that it has to swap"


def test_its_program_prints_what_is_shown():
    assert check_programs(PAGE, "live.md") == 1


def test_every_column_that_it_names_is_there(live, make_trace):
    steps = live(make_trace(2), {"num_blocks": 60}, check=False).steps
    named = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE)))
    assert {name for name in named if not name.startswith("-")} - {"cuda"} <= set(steps.columns)
    assert len(named) >= 6

"""What docs/sweeps.md shows is what happens: its program is run, its commands are, and its file is read."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from pathlib import Path

import pytest

from pagesim.cli.main import app

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8")
USAGE = (
    (ROOT / "docs" / "usage.md")
    .read_text(encoding="utf-8")
    .partition("\n## Sweeps\n")[2]
    .partition("\n## ")[0]
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^    (pagesim (?:[^\n]*\\\n)*[^\n]*)$", re.MULTILINE)
COMMANDS = [command.replace("\\\n", " ") for command in COMMAND.findall(TEXT)]


def test_its_blocks_are_one_program_that_prints_what_is_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    globals_: dict[str, object] = {"__name__": "documentation"}
    printed = ""
    blocks = [(kind, block) for kind, block in FENCE.findall(TEXT) if kind != "toml"]
    assert [kind for kind, _ in blocks] == ["python", "", "python", ""]
    for kind, block in blocks:
        if kind == "":
            assert printed == block
            continue
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(block, "docs/sweeps.md", "exec"), globals_)
        printed = output.getvalue()


def run(command, monkeypatch):
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    with pytest.raises(SystemExit) as end:
        app()
    assert not end.value.code


def test_its_file_and_its_flags_are_the_same_sweep(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ((_, file),) = [block for block in FENCE.findall(TEXT) if block[0] == "toml"]
    Path("SWEEP.toml").write_text(file)
    run(COMMANDS[0], monkeypatch)
    folder = Path("out/sweep")
    first = (folder / "runs.parquet").read_bytes()
    stamps = {path: path.stat().st_mtime_ns for path in (folder / "runs").iterdir()}
    run("pagesim sweep SWEEP.toml --out out/sweep", monkeypatch)
    assert (folder / "runs.parquet").read_bytes() == first
    assert {path: path.stat().st_mtime_ns for path in (folder / "runs").iterdir()} == stamps
    listed = set(re.findall(r"^\| (`[^|]*`) \|", TEXT, re.M))
    named = {name for cell in listed for name in re.findall(r"`([^`]+)`", cell)}
    drawn = {"ttft_p99_by_rate.svg"}
    there = {path.name + ("/" if path.is_dir() else "") for path in folder.iterdir()}
    assert there == named - {".svg"} | drawn


def test_its_search_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (command,) = [command for command in COMMANDS if command.startswith("pagesim sweep --find")]
    run(command, monkeypatch)
    assert {"capacity.parquet", "probes.parquet", "capacity.png"} <= {
        p.name for p in Path("out/sweep").iterdir()
    }


def test_the_command_for_ray_is_the_only_other_one():
    assert len(COMMANDS) == 3
    assert "--executor ray" in COMMANDS[1]


@pytest.mark.slow
def test_the_commands_of_the_page_on_usage_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands = [command.replace("\\\n", " ") for command in COMMAND.findall(USAGE)]
    assert [command.split()[1] for command in commands] == ["sweep", "capacity"]
    for command in commands:
        run(command, monkeypatch)

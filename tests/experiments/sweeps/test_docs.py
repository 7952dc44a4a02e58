"""What docs/how-to/sweeps.md shows is what happens: programs, commands and its file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pages import check_programs, commands_in, text_of

TEXT = text_of("docs/how-to/sweeps.md")
COMMANDS = commands_in(TEXT)


def test_its_programs_print_what_is_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert check_programs(TEXT, "docs/how-to/sweeps.md") == 2


def test_its_file_and_its_flags_are_the_same_sweep(tmp_path, monkeypatch, succeeds):
    monkeypatch.chdir(tmp_path)
    (file,) = re.findall(r"^```toml\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    Path("SWEEP.toml").write_text(file)
    succeeds(*COMMANDS[0])
    folder = Path("out/sweep")
    first = (folder / "runs.parquet").read_bytes()
    stamps = {path: path.stat().st_mtime_ns for path in (folder / "runs").iterdir()}
    succeeds("sweep", "SWEEP.toml", "--out", "out/sweep")
    assert (folder / "runs.parquet").read_bytes() == first
    assert {path: path.stat().st_mtime_ns for path in (folder / "runs").iterdir()} == stamps
    listed = set(re.findall(r"^\| (`[^|]*`) \|", TEXT, re.M))
    named = {name for cell in listed for name in re.findall(r"`([^`]+)`", cell)}
    drawn = {"ttft_p99_by_rate.svg"}
    there = {path.name + ("/" if path.is_dir() else "") for path in folder.iterdir()}
    assert there == named - {".svg"} | drawn


def test_its_search_runs(tmp_path, monkeypatch, succeeds):
    monkeypatch.chdir(tmp_path)
    (words,) = [words for words in COMMANDS if "--find" in words]
    succeeds(*words)
    assert {"capacity.parquet", "probes.parquet", "capacity.png"} <= {
        p.name for p in Path("out/sweep").iterdir()
    }


def test_the_command_for_ray_is_the_only_other_one():
    assert len(COMMANDS) == 3
    assert COMMANDS[1][COMMANDS[1].index("--executor") + 1] == "ray"


@pytest.mark.slow
def test_the_commands_of_the_page_on_usage_run(tmp_path, monkeypatch, succeeds):
    monkeypatch.chdir(tmp_path)
    section = text_of("docs/how-to/usage.md").partition("\n## Sweeps\n")[2].partition("\n## ")[0]
    commands = commands_in(section)
    assert [words[0] for words in commands] == ["sweep"]
    for words in commands:
        succeeds(*words)

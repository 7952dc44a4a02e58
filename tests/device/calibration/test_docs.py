"""What docs/calibration.md, docs/validation.md and docs/usage.md show of them is what happens."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("scipy", reason="scipy is not installed")

from pagesim.cli.main import app

ROOT = Path(__file__).parents[3]
COMMAND = re.compile(r"^    (pagesim (?:calibrate|validate|ablate|profile show tiny)[^#\n]*)", re.MULTILINE)
PAGES = {name: (ROOT / name).read_text(encoding="utf-8") for name in (
    "docs/calibration.md", "docs/validation.md", "docs/usage.md",
)}  # fmt: skip


@pytest.mark.parametrize(
    "name", [name if "calibration" in name else pytest.param(name, marks=pytest.mark.slow) for name in PAGES]
)
def test_its_commands_run_one_after_another(name, tmp_path, monkeypatch, small_grid):
    """Those for a GPU are understood up to the device; the others really run, on a small grid."""
    monkeypatch.chdir(tmp_path)
    commands = [part for line in COMMAND.findall(PAGES[name]) for part in line.split(" && ")]
    assert len(commands) >= 2
    for command in commands:
        words = shlex.split(command)
        if "cuda" in words or "--truth" in words:  # a recorded run is others'
            continue
        if words[1] == "calibrate":
            words += ["--seconds", "0.002"]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as end:
            app()
        assert not end.value.code, command


def test_its_commands_for_a_gpu_are_understood(monkeypatch, capsys, tmp_path):
    """Up to the device: they name options that there are, and files that the one before writes."""
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU, and they take minutes")
    monkeypatch.chdir(tmp_path)
    seen = 0
    for page in PAGES.values():
        for line in COMMAND.findall(page):
            for command in line.split(" && "):
                words = shlex.split(command)
                if "cuda" not in words:
                    continue
                seen += 1
                monkeypatch.setattr(sys, "argv", words)
                with pytest.raises(SystemExit) as end:
                    app()
                assert end.value.code == 2
                assert capsys.readouterr().err.startswith("pagesim: device is 'cuda', but torch "), command
    assert seen >= 5


@pytest.mark.slow
def test_its_program_prints_what_is_shown(capsys, small_grid):
    (program,) = re.findall(r"```python\n(.*?)```", PAGES["docs/calibration.md"], re.DOTALL)
    (shown,) = re.findall(r"```\n\n```\n(.*?)```", PAGES["docs/calibration.md"], re.DOTALL)
    exec(compile(program, "calibration.md", "exec"), {})
    assert capsys.readouterr().out == shown

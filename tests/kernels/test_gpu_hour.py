"""The four commands of an hour with a GPU: each is understood, and without a GPU says so in one sentence."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pagesim.cli.main import app  # noqa: E402

ROOT = Path(__file__).parents[2]
SECTION = (ROOT / "docs/bench.md").read_text(encoding="utf-8").partition("\n## An hour with a GPU\n")[2]
LINES = re.findall(r"^       (\S.*)$", re.split(r"^## ", SECTION, flags=re.MULTILINE)[0], re.MULTILINE)
PARTS = [re.sub(r"^(\w+=\S+ )+", "", part.strip()) for line in LINES for part in re.split(r"&&|;", line)]
COMMANDS = [part for part in PARTS if part.startswith("pagesim ")]
ON_A_GPU = [command for command in COMMANDS if "--device cuda" in command]


def test_there_are_four_commands_and_all_of_them_are_known():
    assert len(LINES) == 4
    others = [part for part in PARTS if part not in COMMANDS]
    assert [part.split()[0] for part in others] == ["python", "export"]
    for word in others[0].split()[3:]:
        if "/" in word:
            assert (ROOT / word).exists()


@pytest.fixture
def said(monkeypatch, capsys, tmp_path):
    """Return what a command that is refused says, in a folder of its own, where no GPU is seen."""

    def run(command: str) -> str:
        (tmp_path / "out").mkdir()  # as the second command leaves it
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(sys, "argv", shlex.split(command))
        with pytest.raises(SystemExit) as end:
            app()
        assert end.value.code
        assert not [file for file in tmp_path.rglob("*") if file.is_file()]
        return capsys.readouterr().err

    return run


@pytest.mark.parametrize("command", ON_A_GPU)
def test_without_a_gpu_it_says_so_and_writes_nothing(command, said):
    assert "device is 'cuda', but torch sees no CUDA GPU" in said(command)


def test_the_figures_need_the_profile_that_was_made_before(said):
    (command,) = (each for each in COMMANDS if each.startswith("pagesim ablate"))
    assert "out/opt-13b.json: cannot be read" in said(command)
    made = next(each for each in COMMANDS if each.startswith("pagesim calibrate"))
    assert made.split()[-1] == "out/opt-13b.json"

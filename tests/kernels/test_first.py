"""The first hour with a GPU: its steps are commands that are understood, and it goes on where it was."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pagesim.cli.main import app  # noqa: E402
from pagesim.kernels.bench import first  # noqa: E402

ROOT = Path(__file__).parents[2]
NAMES = ["correctness", "bench", "calibration", "validation"]


@pytest.fixture
def ran(monkeypatch):
    """Run nothing; return the commands that would have been, and what each is to end with."""
    commands, ends = [], {}

    def run(command, **how):
        assert how["timeout"] == 600
        commands.append((command, how["env"].get("TRITON_INTERPRET")))
        name = NAMES[
            next(i for i, word in enumerate(("pytest", "bench", "calibrate", "validate")) if word in command)
        ]
        if ends.get(name) == "late":
            raise subprocess.TimeoutExpired(command, 600)
        return subprocess.CompletedProcess(command, ends.get(name, 0))

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(first.subprocess, "run", run)
    return commands, ends


def test_it_goes_on_where_it_was(ran, tmp_path, capsys):
    commands, ends = ran
    ends["calibration"] = "late"
    assert not first.run(tmp_path, "cpu")
    assert len(commands) == 3
    assert list(json.loads((tmp_path / first.STATE).read_text())) == NAMES[:2]
    assert "calibration was stopped after 600 s; the same command goes on" in capsys.readouterr().out
    ends["calibration"] = 1
    assert first.main(["--out", str(tmp_path), "--device", "cpu"]) == 1
    assert len(commands) == 4
    ends.clear()
    assert first.main(["--out", str(tmp_path), "--device", "cpu"]) == 0
    assert len(commands) == 6
    assert first.main(["--out", str(tmp_path), "--device", "cpu"]) == 0
    assert len(commands) == 6


def test_only_the_tests_of_kernels_are_interpreted(ran, tmp_path):
    first.run(tmp_path, "cpu")
    assert [interpreted for _, interpreted in ran[0]] == ["1", None, None, None]


def test_on_a_cpu_there_are_few_points_in_any_case():
    assert first.steps(Path("out"), "cpu", False) == first.steps(Path("out"), "cpu", True)
    assert first.steps(Path("out"), "cuda", False) != first.steps(Path("out"), "cuda", True)


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("step", range(1, 4))
def test_without_a_gpu_its_commands_are_understood_and_say_so(step, quick, monkeypatch, tmp_path, capsys):
    arguments = first.steps(tmp_path, "cuda", quick)[step].arguments
    if step == 3:  # which needs the profile that was made before
        arguments = [word for word in arguments if word not in ("--profile", str(tmp_path / "profile.json"))]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(sys, "argv", ["pagesim", *arguments[2:]])
    with pytest.raises(SystemExit) as end:
        app()
    assert end.value.code
    assert "device is 'cuda', but torch sees no CUDA GPU" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_tests_that_it_runs_are_there():
    words = first.steps(Path("out"), "cuda", False)[0].arguments
    assert (ROOT / words[2]).is_dir()


@pytest.mark.slow
@pytest.mark.takes_minutes
def test_all_four_steps_end_on_a_cpu(tmp_path):
    command = [
        sys.executable,
        "-m",
        "pagesim.kernels.bench.first",
        "--out",
        str(tmp_path),
        "--device",
        "cpu",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert list(json.loads((tmp_path / first.STATE).read_text())) == NAMES
    assert (tmp_path / "bench" / "rows.parquet").exists()
    assert (tmp_path / "profile.json").exists()
    assert (tmp_path / "validation" / "summary.json").exists()

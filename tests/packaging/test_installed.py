"""The wheel and the sdist, installed where nothing of the checkout is."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import pagesim

pytestmark = pytest.mark.slow  # an environment with every library that the base needs

ROOT = Path(__file__).resolve().parents[2]


def done(*command: object, folder: Path) -> str:
    run = subprocess.run(
        [str(part) for part in command], cwd=folder, env={"PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, check=False, timeout=500,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the sdist of the tree, and the wheel that is built of the sdist."""
    copy = tmp_path_factory.mktemp("tree") / "pagesim"
    kept = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if kept.returncode:
        pytest.skip("the tree is no checkout of git, which says what belongs to it")
    for name in filter(None, kept.stdout.split("\0")):
        if (ROOT / name).exists() and not name.startswith(("tests/", "docs/", "notebooks/")):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name, follow_symlinks=False)
    done(sys.executable, "-m", "build", "--no-isolation", "--outdir", copy.parent / "dist", copy, folder=copy)
    return copy.parent / "dist"


@pytest.fixture(scope="module")
def installed(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the programs of a new environment in which the wheel was installed."""
    environment = tmp_path_factory.mktemp("environment")
    done(sys.executable, "-m", "venv", environment, folder=environment)
    (wheel,) = packages.glob("*.whl")
    index = subprocess.run(
        [environment / "bin/pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel],
        capture_output=True, text=True, check=False, timeout=500,
    )  # fmt: skip
    if index.returncode and "No matching distribution" in index.stderr:
        pytest.skip("no package index can be reached")
    assert index.returncode == 0, index.stderr
    return environment / "bin"


def test_the_sdist_and_the_wheel_are_of_one_version(packages: Path) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert version == pagesim.__version__
    assert f"version: {version}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    assert {file.name for file in packages.iterdir()} == {
        f"pagesim-{version}.tar.gz",
        f"pagesim-{version}-py3-none-any.whl",
    }


def test_the_command_says_its_version_and_the_engines_that_it_knows(installed: Path, tmp_path: Path) -> None:
    said = done(installed / "pagesim", "--version", folder=tmp_path).splitlines()
    assert said[0] == f"pagesim {pagesim.__version__}"
    assert "vllm-v1: vLLM 0.11.2 to 0.33.0" in said
    assert "sglang: SGLang 0.5.23" in said


def test_an_installed_pagesim_runs_and_draws(installed: Path, tmp_path: Path) -> None:
    command = ["run", "--trace", "sharegpt", "--num-requests", "40", "--rate", "4", "--policy", "vllm-v1"]
    done(installed / "pagesim", *command, "--out", "out", folder=tmp_path)
    assert json.loads((tmp_path / "out/summary.json").read_text("utf-8"))["requests"]["finished"] == 40
    done(installed / "pagesim", "report", "out", "--out", "report.html", folder=tmp_path)
    assert (tmp_path / "report.html").stat().st_size > 1e6
    said = done(installed / "pagesim", "demo", "--out", "demo", folder=tmp_path)
    assert list((tmp_path / "demo").rglob("*.png")), said


def test_a_kernel_command_says_what_to_install(installed: Path, tmp_path: Path) -> None:
    run = subprocess.run(
        [str(installed / "pagesim"), "bench", "attention"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert run.returncode == 2
    assert "pip install" in run.stderr

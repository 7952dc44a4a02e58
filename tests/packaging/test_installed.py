"""The wheel and the sdist, installed where nothing of the checkout is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from random import randrange

import pytest

import pagesim

pytestmark = pytest.mark.slow  # an environment with every library that the base needs

ROOT = Path(__file__).resolve().parents[2]
DATE = 1_700_000_000
"""The time of what is built, in seconds since 1970."""


def done(*command: object, folder: Path) -> str:
    run = subprocess.run(
        [str(part) for part in command], cwd=folder,
        env={"PATH": "/usr/bin:/bin", "SOURCE_DATE_EPOCH": str(DATE)},
        capture_output=True, text=True, check=False, timeout=500,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def build(copy: Path) -> Path:
    """Copy the tree; return the folder with its sdist, and the wheel that is built of the sdist."""
    kept = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if kept.returncode:
        pytest.skip("the tree is no checkout of git, which says what belongs to it")
    for name in filter(None, kept.stdout.split("\0")):
        if (ROOT / name).exists() and not name.startswith(("tests/", "docs/", "notebooks/")):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name, follow_symlinks=False)
            os.utime(copy / name, (DATE, DATE - randrange(1000)), follow_symlinks=False)
    outdir = copy.parent / "dist"
    done(sys.executable, "-m", "build", "--no-isolation", "--outdir", outdir, copy, folder=copy)
    return outdir


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the sdist of the tree, and the wheel that is built of the sdist."""
    return build(tmp_path_factory.mktemp("tree") / "pagesim")


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


def test_the_same_tree_gives_the_same_bytes(packages: Path, tmp_path: Path) -> None:
    again = build(tmp_path / "elsewhere")
    for file in packages.iterdir():
        assert file.read_bytes() == (again / file.name).read_bytes(), file.name


@pytest.mark.parametrize("runner", [("pipx", "run", "--spec"), ("uvx", "--from")], ids=lambda each: each[0])
def test_a_wheel_runs_without_being_installed(
    runner: tuple[str, ...], packages: Path, tmp_path: Path
) -> None:
    venv.create(tmp_path / "runners", with_pip=True)
    programs = tmp_path / "runners" / "bin"
    package = "uv" if runner[0] == "uvx" else runner[0]
    got = subprocess.run(
        [programs / "pip", "install", "--quiet", package], capture_output=True, text=True, check=False
    )
    if got.returncode:
        pytest.skip(f"no package index has {package}")
    (wheel,) = packages.glob("*.whl")
    plan = ("pagesim", "plan", "--model", "llama-3.1-8b", "--gpu", "h100")
    run = subprocess.run(
        [programs / runner[0], *runner[1:], wheel, *plan],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=500,
        env={**os.environ, "PIPX_HOME": str(tmp_path / "pipx"), "UV_CACHE_DIR": str(tmp_path / "uv")},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "KV cache" in run.stdout


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
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=500,
    )  # fmt: skip
    assert run.returncode == 2
    assert "pip install" in run.stderr

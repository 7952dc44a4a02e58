"""The Triton kernels against the references without a GPU: ``interpreted/``, under Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FILES = ["test_decode.py", "test_prefill.py", "test_copies.py"]

pytestmark = pytest.mark.skipif(
    find_spec("triton") is None or find_spec("torch") is None, reason="triton or torch is not installed"
)


def run(file: str, marked: str) -> None:
    options = ["-q", "-m", marked, "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(HERE / "interpreted" / file)],
        cwd=HERE.parents[1],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " skipped" not in done.stdout, done.stdout[-2000:]


def test_every_file_is_run():
    assert sorted(FILES) == sorted(file.name for file in (HERE / "interpreted").glob("test_*.py"))


@pytest.mark.parametrize("file", FILES)
def test_kernels_do_what_the_references_do(file):
    run(file, "not slow")


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_kernels_do_what_the_references_do_on_the_whole_grid(file):
    run(file, "slow")

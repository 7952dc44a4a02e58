"""The Triton kernels against the references without a GPU: ``ops/``, under Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

OPS = Path(__file__).parent / "ops"
MISSING = [package for package in ("torch", "triton") if find_spec(package) is None]

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"{' and '.join(MISSING)} not installed")


def run(marked: str, folder: Path = OPS) -> str:
    """Run tests in a process of its own, for Triton decides when it is imported whether it interprets."""
    options = ["-q", "-m", marked, "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(folder)],
        cwd=OPS.parents[2],
        # Tensors of this size are no work for several threads.
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout


def test_kernels_do_what_the_references_do():
    said = run("not slow")
    assert " passed" in said
    assert " skipped" not in said


@pytest.mark.slow
@pytest.mark.parametrize("file", sorted(file.name for file in OPS.glob("test_*.py")))
def test_kernels_do_what_the_references_do_on_the_whole_grid(file):
    said = run("slow", OPS / file)
    assert " passed" in said
    assert " skipped" not in said

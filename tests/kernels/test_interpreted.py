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
if MISSING:
    pytest.skip(f"{' and '.join(MISSING)} not installed", allow_module_level=True)

from tests.kernels.hostile.kernels import KERNELS  # noqa: E402


def run(marked: str, folder: Path = OPS, chosen: str = "") -> str:
    """Run tests in a process of its own, for Triton decides when it is imported whether it interprets."""
    options = ["-q", "-m", marked, "-k", chosen, "-p", "no:cacheprovider", "-p", "no:xdist"]
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
@pytest.mark.parametrize("name", [name.replace(" ", "-") for name in KERNELS])
def test_a_kernel_does_what_the_formula_does_on_the_hostile_grid(name):
    said = run("slow", OPS / "test_hostile.py", f"[{name}:")
    assert " passed" in said
    assert " skipped" not in said

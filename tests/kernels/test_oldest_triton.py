"""Every kernel compiled by the oldest triton that is supported, from a folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

OLDEST = "3.6.0"
ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "out" / f"triton-{OLDEST}"

MISSING = [package for package in ("torch", "triton") if find_spec(package) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.takes_minutes,
    pytest.mark.skipif(bool(MISSING), reason=f"{' and '.join(MISSING)} not installed"),
]


@pytest.fixture(scope="module")
def oldest() -> Path:
    """Return a folder that holds the oldest triton and nothing else; it is kept for the next time."""
    if not (FOLDER / "triton" / "__init__.py").exists():
        options = ["--quiet", "--no-deps", "--disable-pip-version-check", "--target", str(FOLDER)]
        command = [sys.executable, "-m", "pip", "install", *options, f"triton=={OLDEST}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            pytest.skip(f"triton {OLDEST} cannot be had: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    return FOLDER


# Its interpreter fails with numpy 2.4 (triton#9171), so that it only compiles.
def test_no_kernel_has_a_fault(oldest: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(oldest), str(ROOT)])
    command = [sys.executable, "-m", "pagesim.kernels.compile_report"]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.stdout.startswith(f"triton {OLDEST}\n")
    assert done.returncode == 0, done.stdout + done.stderr

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


# Its interpreter fails with numpy 2.4 (triton#9171), so that it only compiles, here for Hopper.
def test_no_kernel_has_spills(oldest: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(oldest), str(ROOT)])

    def python(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False
        )

    assert python("-c", "import triton; print(triton.__version__)").stdout == f"{OLDEST}\n"
    options = ["-q", "-W", "ignore", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", "90"]
    done = python("-m", "pytest", *options, "tests/kernels/test_compiled.py")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " skipped" not in done.stdout

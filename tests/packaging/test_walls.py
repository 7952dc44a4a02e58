"""The simulator runs where torch and triton are not installed, and loads neither where they are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pagesim

WITHOUT = """
import sys
for name in ("torch", "triton"):
    sys.modules[name] = None  # an import now fails, as if it were not installed
"""

UNTOUCHED = """
assert sys.modules["torch"] is sys.modules["triton"] is None
assert not [name for name in sys.modules if name.startswith(("torch.", "triton."))]
print("done")
"""

LIBRARY = """
import pagesim as ps
results = ps.compare("fixed:100,20", num_blocks=200)
assert all(result.summary["requests"]["finished"] == 1000 for result in results.values())
"""

COMMAND = """
from pagesim.cli.main import app
sys.argv = ["pagesim", "run", "--trace", "sharegpt", "--num-requests", "20", "--out", "out"]
try:
    app()
except SystemExit as end:
    assert not end.code, end.code
"""

EVERYTHING = """
import importlib, pkgutil
import pagesim
for module in pkgutil.walk_packages(pagesim.__path__, "pagesim."):
    if not module.name.startswith(("pagesim.kernels", "pagesim.device.live.", "pagesim.device.calibration.")):
        importlib.import_module(module.name)
"""

NEITHER = """
import pagesim as ps
ps.simulate("fixed:100,20")
assert not {"torch", "triton"} & set(sys.modules)
print("done")
"""


def python(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in a fresh interpreter."""
    here = str(Path(pagesim.__file__).parents[1])
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow_but("every module but the kernels and what measures")
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(WITHOUT + LIBRARY + UNTOUCHED, id="the library"),
        pytest.param(WITHOUT + COMMAND + UNTOUCHED, id="the command line"),
        pytest.param(
            WITHOUT + EVERYTHING + UNTOUCHED,
            id="every module but the kernels and what measures",
        ),
        pytest.param("import sys\n" + NEITHER, id="nor loads them where they are installed"),
    ],
)
def test_the_simulator_runs_without_torch_and_triton(program, tmp_path):
    done = python(program, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("done\n")


@pytest.mark.slow_but("run --device auto", "bench all --device cuda")
@pytest.mark.parametrize(
    "command",
    [
        "run --device auto",
        "calibrate p.json",
        "bench all",
        "bench all --device cpu",
        "bench all --device cuda",
    ],
)
def test_what_needs_torch_says_so_in_one_sentence(command, tmp_path):
    run = f"from pagesim.cli.main import app\nsys.argv = ['pagesim', *{command.split()}]\napp()\n"
    done = python(WITHOUT + run, tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        "pagesim: torch is not installed and the kernels need it: pip install '.[kernels]' in the checkout\n"
    )


HEAVY = ("pandas", "matplotlib", "pyarrow", "scipy", "torch", "triton")


@pytest.mark.slow_but("pagesim", "run")
@pytest.mark.parametrize(
    ("command", "heavy"),
    [
        pytest.param(command, heavy, id=command or "pagesim")
        for command, heavy in {
            "": (*HEAVY, "simpy", "numpy", "pydantic", "pagesim.setup.system"),
            **dict.fromkeys(("run", "calibrate", "validate", "ablate preemption"), HEAVY),
            **dict.fromkeys(("bench", "bench attention", "doctor"), HEAVY),
        }.items()
    ],
)
def test_help_waits_for_no_heavy_library(command, heavy, tmp_path):
    argv = ["pagesim", *command.split(), "--help"]
    program = (
        f"import sys\nfrom pagesim.cli.main import app\nsys.argv = {argv}\n"
        f"try:\n    app()\nfinally:\n    print(sorted(set({heavy}) & set(sys.modules)))\n"
    )
    done = python(program, tmp_path)
    assert done.stdout.endswith("[]\n"), done.stdout[-200:] + done.stderr
    assert "Usage: " in done.stdout

"""The compiled form: built of the same source, it decides the same, and parts of others work on it."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pagesim.setup.compiled import MODULES, form

pytestmark = [pytest.mark.slow, pytest.mark.takes_minutes]  # a C compiler over the core

ROOT = Path(__file__).resolve().parents[2]
COMPILERS = ("cc", "gcc", "clang")

Run = Callable[..., str]

A_SUBCLASS = """
import numpy as np
import pagesim as ps
from pagesim.kvcache import PagedManager, KVGroup
from pagesim.scheduling.vllm_v1 import VllmV1


class Patient(VllmV1):
    '''Lets at most three requests run.'''

    def may_join(self, request):
        return len(self.running) < 3


class Spare(PagedManager):
    '''Says that a block less is free than is.'''

    def can_admit(self, request, tokens, spare=0, length=0):
        return super().can_admit(request, tokens, spare + 1, length)


ps.register("scheduler", "patient", Patient)
ps.register("allocator", "spare", lambda pool: Spare(pool.num_blocks, [KVGroup(pool.block_size)]))
trace = ps.make_trace("fixed:20,30", num_requests=12)
options = {"cost": "affine:0.01,1e-5,1e-7", "num_blocks": 100}
found = ps.simulate(trace, scheduler="patient", reservation="on-demand", allocator="paged", **options)
print(int(found.steps["num_running"].max()), int((found.requests["status"] == "finished").sum()))
found = ps.simulate(trace, scheduler="vllm-sosp", reservation="on-demand", allocator="spare", **options)
print(int((found.requests["status"] == "finished").sum()))
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a function that runs Python where the compiled form is found; it returns what is printed."""
    if not any(map(shutil.which, COMPILERS)):
        pytest.skip(f"there is no C compiler: none of {', '.join(COMPILERS)}")
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # of all workers: the first one builds it, the others wait
    tree = base / "compiled-form"

    def run(*arguments: object, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree), **environment},
            capture_output=True,
            text=True,
            timeout=1800,
            check=False,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
        return done.stdout

    with (base / "compiled-form.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (tree / "is built").exists():
            shutil.rmtree(tree, ignore_errors=True)
            for name in ("pagesim", "kernels", "workloads", "tests", "docs"):
                unwanted = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=unwanted)
            for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "NOTICE"):
                shutil.copy(ROOT / name, tree)
            run("setup.py", "-q", "build_ext", "--inplace", PAGESIM_COMPILE="1")
            (tree / "is built").touch()
    return run


def test_the_doctor_says_which_form_runs(compiled: Run) -> None:
    assert form().startswith("pure Python")
    assert f"compiled, {len(MODULES)} of {len(MODULES)} modules" in compiled("-m", "pagesim", "doctor")


def test_golden_logs_are_equal_on_it(compiled: Run) -> None:
    said = compiled("-m", "pagesim", "golden").splitlines()[-1]
    equal, different, _ = said.split(", ")
    assert different == "0 different"
    assert int(equal.split()[0]) > 80


@pytest.mark.parametrize(
    "tests",
    [
        ("tests/sim/test_random_systems.py", "tests/sim/test_kv_groups.py", "tests/sim/test_preemption.py"),
        ("tests/kvcache", "tests/sim/test_hybrid_ledger.py"),
        ("tests/sim/test_tiers.py", "tests/sim/test_tier_ledger.py", "tests/sim/test_sglang.py"),
        ("tests/setup/test_plugins.py", "tests/cli/test_plugins.py"),
    ],
    ids=["random systems", "memories", "tiers and sglang", "parts of others"],
)
def test_tests_of_the_core_pass_on_it(compiled: Run, tests: tuple[str, ...]) -> None:
    said = compiled("-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", *tests)
    assert " passed" in said.splitlines()[-1]


def test_a_scheduler_and_a_memory_may_be_derived_from_it(compiled: Run, tmp_path: Path) -> None:
    program = tmp_path / "derived.py"
    program.write_text(A_SUBCLASS)
    assert compiled(program).split() == ["3", "12", "12"]
    pure = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert pure.stdout.split() == ["3", "12", "12"]

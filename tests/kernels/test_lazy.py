"""Nothing is imported before it is needed; what is missing is said in one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import pagesim

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


def python(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a fresh interpreter that is not Triton's."""
    path = os.pathsep.join(
        filter(None, [str(Path(pagesim.__file__).parents[1]), os.environ.get("PYTHONPATH")])
    )
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**environment, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_package_and_rows_of_a_bench_need_no_torch():
    done = python(
        "import sys\n"
        "import pagesim.kernels as kernels\n"
        "dir(kernels)\n"
        "from pagesim.kernels.bench import Grid, read_rows\n"
        "assert not {'torch', 'triton'} & set(sys.modules)\n"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@needs_torch
def test_on_a_cpu_every_op_runs_without_triton():
    done = python(
        "import sys\n"
        "sys.modules['triton'] = None\n"
        "import torch\n"
        "from pagesim.kernels import *\n"
        "from tests.kernels.cases import make_case\n"
        "case = make_case([63, 0])\n"
        "case.run()\n"
        "make_case([63], query_lens=[5]).run()\n"
        "gather_sequences(case.cache, *case.batch[:2])\n"
        "copy_blocks([case.key_cache], torch.tensor([[0, 1]]))\n"
        "moved = gather_blocks([case.key_cache], torch.tensor([0]))\n"
        "scatter_blocks(moved, [case.key_cache], torch.tensor([1]))\n"
        "key = torch.zeros(1, 2, 64, dtype=torch.float16)\n"
        "reshape_and_cache(key, key, case.cache, torch.tensor([3]))\n"
    )
    assert done.returncode == 0, done.stderr


def test_without_torch_that_is_what_is_said():
    done = python("import sys\nsys.modules['torch'] = None\nfrom pagesim.kernels import paged_attention\n")
    assert done.stderr.endswith(
        "PagesimError: pagesim.kernels needs torch, which is not installed: "
        "pip install '.[kernels]' in the checkout\n"
    )


@pytest.mark.slow
@needs_torch
def test_without_triton_that_is_what_is_said():
    done = python(
        "import sys\n"
        "sys.modules['triton'] = None\n"
        "from tests.kernels.cases import make_case\n"
        "make_case([5]).run(backend='triton')\n"
    )
    assert "PagesimError: backend 'triton' needs triton, which is not installed" in done.stderr


@pytest.mark.slow
@needs_torch
@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
def test_triton_on_a_cpu_is_refused_outside_of_the_interpreter():
    done = python("from tests.kernels.cases import make_case\nmake_case([5]).run(backend='triton')\n")
    assert "PagesimError: backend is 'triton' and the tensors are on cpu; a CUDA GPU is needed" in done.stderr

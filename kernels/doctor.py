"""Reports what is installed and usable on this machine, and how to get what is missing."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pagesim
from pagesim.errors import PACKAGES
from pagesim.kernels.machine import nvidia_smi
from pagesim.kernels.requirements import INSTALL, Unavailable, installed

PYTHON = (3, 11)
"""Oldest supported version."""

REQUIRED = (
    "numpy",
    "pandas",
    "pyarrow",
    "simpy",
    "matplotlib",
    "typer",
    "rich",
    "pydantic",
    "joblib",
    "plotly",
    "re2",
    "scipy",
)

EXTRAS = {
    "ray": ("ray", "ray", "runs sweeps on many machines"),
    "tokenizers": ("tokenize", "tokenizers", "counts the tokens of texts"),
    "nbclient": ("notebooks", "nbclient", "runs the notebooks"),
}
"""Import name → extra, distribution, purpose."""

PEERS = {
    "flashinfer": ("flashinfer-python", "FlashInfer"),
    "vllm": ("vllm", "vLLM's Triton attention"),
}
"""Import name → distribution, what it adds to the bench."""


class State(Enum):
    """State of a component."""

    FINE = "✓"
    ABSENT = "–"
    BROKEN = "✗"


@dataclass(frozen=True)
class Finding:
    """One line of the report: a component, its state, and its version, the problem, or how to get it.

    Attributes:
        name: name of the component.
        state: its state.
        detail: the rest of the line.
        required: whether pagesim cannot be used without it.
    """

    name: str
    state: State
    detail: str
    required: bool = False


def examine() -> Iterator[Finding]:
    """Yield findings, with required components first; slow where libraries must be loaded."""
    yield _python()
    yield Finding("pagesim", State.FINE, f"{pagesim.__version__}, in {Path(pagesim.__file__).parent}")
    for name in REQUIRED:
        yield _library(name)
    yield from _kernels()
    for name, (distribution, what) in PEERS.items():
        there = installed(name)
        detail = f"{_version(distribution)}, joins the bench" if there else f"{what} would join the bench"
        yield Finding(name, State.FINE if there else State.ABSENT, detail)
    for name, (extra, distribution, what) in EXTRAS.items():
        there = installed(name)
        detail = _version(distribution) if there else f"pip install '.[{extra}]' in the checkout"
        yield Finding(name, State.FINE if there else State.ABSENT, f"{detail} ({what})")


def _python() -> Finding:
    fine = sys.version_info >= PYTHON
    said = platform.python_version()
    if not fine:
        said += f"; {PYTHON[0]}.{PYTHON[1]} or later is needed"
    return Finding("python", State.FINE if fine else State.BROKEN, f"{said}, {sys.executable}", required=True)


def _library(name: str) -> Finding:
    try:
        import_module(name)
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name == name
        said = (
            f"not installed: pip install {PACKAGES.get(name, name)}"
            if absent
            else f"cannot be imported: {_line(error)}"
        )
        return Finding(name, State.BROKEN, said, required=True)
    except Exception as error:  # a broken build may raise anything
        return Finding(name, State.BROKEN, f"cannot be imported: {_line(error)}", required=True)
    return Finding(name, State.FINE, _version(name), required=True)


def _kernels() -> Iterator[Finding]:
    """Yield what the kernels need, each with what depends on it."""
    if not installed("torch"):
        yield Finding("torch", State.ABSENT, f"kernels, bench and calibration need it: {INSTALL}")
        yield _triton()
        return
    try:
        torch: Any = import_module("torch")
    except Exception as error:  # wrong libc, wrong driver: anything the loader raises
        yield Finding("torch", State.BROKEN, f"cannot be imported: {_line(error)}")
        yield _triton()
        return
    built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
    yield Finding("torch", State.FINE, f"{torch.__version__}, {built}")
    yield _triton()
    if not installed("numpy"):
        yield Finding("CUDA GPU", State.ABSENT, "it is looked for once numpy is installed")
        return
    yield _driver()
    gpu = _gpu(torch)
    yield gpu
    yield _batched(gpu)


def _triton() -> Finding:
    if installed("triton"):
        return Finding("triton", State.FINE, _version("triton"))
    if platform.system() != "Linux":
        return Finding("triton", State.ABSENT, "is for Linux; the reference path runs without it")
    return Finding("triton", State.ABSENT, f"the kernels need it on a GPU: {INSTALL}")


def _driver() -> Finding:
    from pagesim.kernels.swap.driver import driver

    try:
        newest = driver().version()
    except Unavailable:
        found = "no libcuda.so.1; the reference path runs without it, whose times say nothing of the kernels"
        return Finding("CUDA driver", State.ABSENT, found)
    except pagesim.PagesimError as error:
        return Finding("CUDA driver", State.BROKEN, str(error))
    said = nvidia_smi()["driver"]
    return Finding("CUDA driver", State.FINE, f"{said or 'of unknown version'}, up to CUDA {newest}")


def _gpu(torch: Any) -> Finding:
    if torch.cuda.is_available():
        facts = torch.cuda.get_device_properties()
        return Finding(
            "CUDA GPU",
            State.FINE,
            f"{facts.name}, sm_{facts.major}{facts.minor}, {facts.multi_processor_count} SMs, "
            f"{facts.total_memory / 2**30:.0f} GiB, {facts.L2_cache_size / 2**20:.0f} MiB of L2",
        )
    if torch.version.cuda is None:
        return Finding("CUDA GPU", State.ABSENT, "this torch cannot use one; its CUDA build: see pytorch.org")
    return Finding("CUDA GPU", State.ABSENT, "torch sees none; bench and calibration run on the CPU")


def _batched(gpu: Finding) -> Finding:
    from pagesim.kernels.swap import CopyBatch

    if gpu.state is not State.FINE:
        return Finding("batched copies", State.ABSENT, "swap strategy copy-batch needs a CUDA GPU")
    import torch

    missing = CopyBatch.lacks(torch.device("cuda"))
    return Finding("batched copies", State.ABSENT if missing else State.FINE, missing or "cuMemcpyBatchAsync")


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "of unknown version"


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__

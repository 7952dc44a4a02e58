"""A full description of the machine behind a measurement, so that it can be trusted and repeated."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pagesim

Machine = dict[str, Any]
"""Result of ``describe_machine``: text, numbers and None, which can be written as JSON."""

IDENTITY = (
    "device", "device_name", "compute_capability", "driver", "cuda", "torch", "triton", "cpu", "threads",
    "python", "pagesim", "source",
)  # fmt: skip
"""What a measurement depends on: rows are not mixed if their machines differ in any of these."""

_ASKED = {
    "driver": "driver_version",
    "clock_sm_mhz": "clocks.sm",
    "clock_memory_mhz": "clocks.mem",
    "clock_sm_max_mhz": "clocks.max.sm",
    "clock_memory_max_mhz": "clocks.max.mem",
    "power_limit_w": "power.limit",
    "pcie_generation": "pcie.link.gen.max",
    "pcie_width": "pcie.link.width.max",
}
"""Queries for ``nvidia-smi --query-gpu``."""


def describe_machine(device: str) -> Machine:
    """Return the facts about this machine that a measurement depends on.

    Clocks are the current ones. Anything that cannot be determined is None, as are GPU facts on a CPU.

    Args:
        device: ``cpu`` or ``cuda``.
    """
    gpu = _gpu() if device == "cuda" else dict.fromkeys(_GPU_FACTS)
    return {
        "device": device,
        "device_name": _cpu(),
        **gpu,
        "torch": _version("torch"),
        "triton": _version("triton"),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": _threads(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "pagesim": pagesim.__version__,
        "source": source(),
        "commit": _commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def available_bytes() -> int:
    """Return the bytes of host memory that can be allocated without swapping or evicting anything."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):  # not Linux: report all memory
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def identity(machine: Machine) -> str:
    """Return twelve hexadecimal digits that are equal for machines whose measurements may be mixed."""
    return digest([machine.get(name) for name in IDENTITY])


def digest(value: Any) -> str:
    """Return twelve hexadecimal digits that identify a JSON value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@cache
def source() -> str:
    """Return twelve hexadecimal digits of this package's code, so that an edited kernel is remeasured."""
    folder = Path(__file__).parent
    files = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*.py"))
    seen = hashlib.sha256()
    for file in files:
        seen.update(file.encode() + b"\0" + (folder / file).read_bytes() + b"\0")
    return seen.hexdigest()[:12]


_GPU_FACTS = (
    "compute_capability", "multiprocessors", "shared_bytes", "l2_bytes", "memory_bytes", "cuda", *_ASKED
)  # fmt: skip


def _gpu() -> Machine:
    import torch

    facts = torch.cuda.get_device_properties()
    return {
        "device_name": facts.name,
        "compute_capability": f"{facts.major}.{facts.minor}",
        "multiprocessors": facts.multi_processor_count,
        "shared_bytes": facts.shared_memory_per_multiprocessor,
        "l2_bytes": facts.L2_cache_size,
        "memory_bytes": facts.total_memory,
        "cuda": torch.version.cuda,
        **nvidia_smi(str(getattr(facts, "uuid", ""))),
    }


def nvidia_smi(uuid: str = "") -> Machine:
    """Return a GPU's driver, clocks, power limit and link from ``nvidia-smi``; None where it says nothing.

    Args:
        uuid: torch's UUID of the GPU; the first GPU if empty.
    """
    only = ["-i", f"GPU-{uuid.removeprefix('GPU-')}"] if uuid else ["-i", "0"]
    query = f"--query-gpu={','.join(_ASKED.values())}"
    said = _output("nvidia-smi", *only, query, "--format=csv,noheader,nounits")
    values = [value.strip() for value in (said or "").split("\n")[0].split(",")]
    if len(values) != len(_ASKED):
        return dict.fromkeys(_ASKED)
    return {
        name: value if name == "driver" else _number(value)
        for name, value in zip(_ASKED, values, strict=True)
    }


def _number(value: str) -> float | None:
    try:
        return float(value)
    except ValueError:  # "[N/A]", "[Not Supported]"
        return None


@cache
def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _threads() -> int | None:
    try:
        import torch
    except ImportError:
        return None
    return torch.get_num_threads()


def _version(package: str) -> str | None:
    if package == "torch":
        try:
            import torch
        except ImportError:
            return None
        return str(torch.__version__)  # unlike the metadata, it names the build
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def _commit() -> str | None:
    """Return the checkout's commit, marked if tracked files have changed; None outside a checkout."""
    folder, here = str(Path(__file__).parent), Path(__file__).name
    if _output("git", "-C", folder, "ls-files", "--error-unmatch", here) is None:
        return None  # installed, perhaps inside another project's checkout
    commit = _output("git", "-C", folder, "rev-parse", "HEAD")
    # Refreshing the index would need a lock, which stays behind if git is killed or the disk is full.
    changed = _output(
        "git", "--no-optional-locks", "-C", folder, "status", "--porcelain", "--untracked-files=no"
    )
    return commit and commit + ("+changes" if changed else "")


def _output(*command: str) -> str | None:
    """Return a program's stripped output; None if it is missing, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()

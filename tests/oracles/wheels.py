"""Wheels: the Python files of a released vLLM, fetched once from the package index."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PLATFORMS = ("manylinux1_x86_64", "manylinux_2_28_x86_64", "manylinux_2_31_x86_64")
"""Those that the releases have wheels for; their Python files run anywhere."""


def unpacked(release: str, folder: Path) -> Path:
    """Return where the Python files of ``vllm==release`` lie, after fetching them if they are absent.

    A wheel has up to 500 MB, nearly all of it compiled for a GPU. It is deleted once its Python files, tens
    of MB, are out of it; its dependencies are not fetched.

    Raises:
        subprocess.CalledProcessError: pip cannot fetch the wheel; it says why on stderr.
    """
    target = folder / f"vllm-{release}"
    if target.is_dir():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as room:
        options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"]
        options += ["--python-version", "3.11", *(f"--platform={platform}" for platform in PLATFORMS)]
        command = [sys.executable, "-m", "pip", "download", *options, "--dest", room, f"vllm=={release}"]
        subprocess.run(command, check=True)
        (wheel,) = Path(room).glob("*.whl")
        with zipfile.ZipFile(wheel) as files:
            python = [name for name in files.namelist() if name.startswith("vllm/") and name.endswith(".py")]
            files.extractall(Path(room) / "unpacked", python)
        # A folder of that name is whole: it is moved into place when all files are there.
        (Path(room) / "unpacked").rename(target)
    return target

"""GPUs by name."""

from __future__ import annotations

from pagesim.hardware.gpu_rows import read
from pagesim.hardware.gpu_spec import GIB, GpuSpec, Link
from pagesim.models.names import find
from pagesim.setup.plugins import Plugins

__all__ = ["GIB", "GPUS", "GpuSpec", "Link", "gpu", "gpus"]

_GPUS = read()

GPUS: Plugins[GpuSpec] = Plugins("gpu", "pagesim.gpus", _GPUS)
"""GPUs by name, and those that others bring."""


def gpu(name: str) -> GpuSpec:
    """Return the GPU of that name.

    Raises:
        PagesimError: no such GPU; the message lists names like it.
    """
    if name.lower() not in _GPUS and name in GPUS:
        return GPUS.find(name)
    return find("GPU", name, _GPUS)


def gpus() -> tuple[GpuSpec, ...]:
    """Return every GPU that is known by name."""
    return tuple(GPUS.find(name) for name in GPUS.names())

"""What the kernels need that may be absent: torch, triton, a CUDA GPU, and one sentence for each."""

from __future__ import annotations

from importlib.util import find_spec

from pagesim.errors import PagesimError

DEVICES = ("cpu", "cuda")
"""Devices by name; CUDA_VISIBLE_DEVICES chooses among several GPUs."""

INSTALL = "pip install '.[kernels]' in the checkout"


class Unavailable(PagesimError):
    """What was asked cannot be done on this machine; the message says what is missing."""


def installed(package: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # blocked, or half removed
        return False


def require_device(device: str) -> None:
    """Make sure that the kernels can run on a device.

    Raises:
        PagesimError: it is none of ``DEVICES``.
        Unavailable: torch is missing, or there is no CUDA GPU that it can use, or triton is missing there.
    """
    if device not in DEVICES:
        raise PagesimError(f"device is {device!r}; it must be one of {', '.join(DEVICES)}")
    if not installed("torch"):
        raise Unavailable(f"torch is not installed and the kernels need it: {INSTALL}")
    if device == "cpu":
        return
    import torch

    if torch.version.cuda is None:
        raise Unavailable(
            f"device is 'cuda', but torch {torch.__version__} is built without CUDA; "
            "install a CUDA build of torch, or use device cpu"
        )
    if not torch.cuda.is_available():
        raise Unavailable(
            "device is 'cuda', but torch sees no CUDA GPU; see `pagesim doctor`, or use device cpu"
        )
    if not installed("triton"):
        raise Unavailable(f"triton is not installed and the kernels need it on a GPU: {INSTALL}")

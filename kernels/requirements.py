"""What the kernels need and may be missing (torch, triton, a CUDA GPU), with an error message for each."""

from __future__ import annotations

from importlib.util import find_spec

from pagesim.errors import PagesimError

DEVICES = ("cpu", "cuda")
"""Device names; CUDA_VISIBLE_DEVICES selects among several GPUs."""

INSTALL = "pip install '.[kernels]' in the checkout"


class Unavailable(PagesimError):
    """The request cannot be fulfilled on this machine; the message says what is missing."""


def installed(package: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # blocked or half removed
        return False


def require_device(device: str) -> None:
    """Make sure that the kernels can run on a device.

    Raises:
        PagesimError: the device is not in ``DEVICES``.
        Unavailable: torch is missing; or, for a GPU, torch cannot use one or triton is missing.
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

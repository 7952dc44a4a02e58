"""What the strategies with a kernel share."""

from __future__ import annotations

import torch

from pagesim.errors import PagesimError
from pagesim.kernels.requirements import INSTALL, installed
from pagesim.kernels.swap.base import Pools

ALIGNMENT = 16
"""Bytes that a kernel moves at a time."""


def lacks_triton(device: torch.device) -> str | None:
    """Return what is missing to run a kernel on a device, or None."""
    if device.type == "cuda" and not installed("triton"):
        return f"its kernel needs triton: {INSTALL}"
    return None


def check_pieces(name: str, pools: Pools) -> None:
    """Make sure that a kernel can move pieces.

    Raises:
        PagesimError: they are not a multiple of ``ALIGNMENT`` bytes.
    """
    if pools.piece_bytes % ALIGNMENT:
        raise PagesimError(
            f"strategy {name}: a piece is {pools.piece_bytes} bytes; it must be a multiple of {ALIGNMENT}"
        )

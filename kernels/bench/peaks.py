"""What the device can do at most, measured in the same run: copy bandwidth and matrix products."""

from __future__ import annotations

import time

import torch

from pagesim.kernels.timing import Call, time_kernel


def copy_bytes_per_s(device: torch.device, size: int | None = None, budget_s: float = 0.4) -> float:
    """Return the copy bandwidth of a device's own memory: bytes read plus bytes written, a second.

    The bytes are random and the buffers far larger than any cache: a GiB on a GPU, 64 MiB on a CPU.

    Args:
        device: whose memory.
        size: bytes of each of the two buffers.
        budget_s: seconds to spend.
    """
    size = size or (1 << 30 if device.type == "cuda" else 64 << 20)
    source = torch.empty(size // 8, dtype=torch.int64, device=device).random_()
    target = torch.empty_like(source)
    _raise_clocks(lambda: target.copy_(source), device)
    timing = time_kernel([lambda: target.copy_(source)], device, budget_s)
    return 2 * source.nbytes / timing.median_s


def matrix_flop_per_s(
    device: torch.device, dtype: torch.dtype, size: int | None = None, budget_s: float = 0.4
) -> float:
    """Return the rate of the product of two large random square matrices, in operations a second.

    Args:
        device: what multiplies.
        dtype: of both.
        size: rows and columns; 8192 on a GPU, 512 on a CPU unless given.
        budget_s: seconds to spend.
    """
    size = size or (8192 if device.type == "cuda" else 512)
    a, b = (torch.empty(size, size, dtype=dtype, device=device).normal_() for _ in range(2))
    out = torch.empty_like(a)
    _raise_clocks(lambda: torch.mm(a, b, out=out), device)
    return 2 * size**3 / time_kernel([lambda: torch.mm(a, b, out=out)], device, budget_s).median_s


def _raise_clocks(call: Call, device: torch.device) -> None:
    """Work for half a second: an idle GPU's clocks are low, and rise within a fraction of one."""
    if device.type != "cuda":
        return
    until = time.perf_counter() + 0.5
    while time.perf_counter() < until:
        call()
        torch.cuda.synchronize()

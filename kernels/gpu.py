"""What ops ask of the GPU that their tensors are on; an H200, where they are on none."""

from __future__ import annotations

from functools import cache as kept

import torch

from pagesim.kernels.planner import Gpu


@kept
def gpu_of(device: torch.device) -> Gpu:
    """Return what the planner must know of a device."""
    if device.type != "cuda":
        return Gpu()
    facts = torch.cuda.get_device_properties(device)
    return Gpu(sms=facts.multi_processor_count, shared_bytes=facts.shared_memory_per_multiprocessor)


@kept
def capability_of(device: torch.device) -> int:
    """Return a device's compute capability times ten."""
    if device.type != "cuda":
        return 90
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor

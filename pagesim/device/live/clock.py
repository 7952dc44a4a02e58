"""Clock: times of the parts of an iteration, by the device's own clock if it has one."""

from __future__ import annotations

import time
from typing import Any

import torch


class PartClock:
    """Marks points in a device's work, and returns the time between two marks afterwards.

    On a GPU, a mark is an event in the current stream, which happens when all earlier launches have finished.
    On a CPU it happens at once.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"

    def mark(self) -> Any:
        """Return a mark."""
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def between(self, first: Any, last: Any) -> float:
        """Return the seconds between two marks that have both happened."""
        if not self._on_gpu:
            return float(last - first)
        return float(first.elapsed_time(last)) / 1e3

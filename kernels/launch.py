"""A kernel with its arguments: run on a device, or compiled ahead of time without one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import triton
from torch import Tensor

Meta = Mapping[str, Any]
"""A kernel's arguments by name, those of its configuration included."""

PLAIN = triton.Config({}, num_warps=4)
"""The configuration of kernels that have nothing to choose."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of one Triton kernel.

    What starts a kernel and what compiles it ahead of time both begin here, so that what is compiled without
    a GPU is what runs on one.

    Args:
        kernel: a function under ``triton.jit``.
        grid: programs along up to three axes, from the arguments and the configuration.
        arguments: all arguments of the kernel by name, without those of its configuration.
        config: tiles, warps and stages.
    """

    kernel: Any
    grid: Callable[[Meta], tuple[int, ...]]
    arguments: dict[str, Any] = field(repr=False)
    config: triton.Config = PLAIN

    def run(self, on: Tensor) -> None:
        """Start the kernel on a tensor's device; an empty grid starts nothing."""
        if 0 in self.grid({**self.arguments, **self.config.kwargs}):
            return
        elsewhere = on.is_cuda and on.device.index != torch.cuda.current_device()
        with torch.cuda.device(on.device) if elsewhere else nullcontext():
            self.kernel[self.grid](**self.arguments, **self.config.all_kwargs())


def run_all(launches: Iterable[Launch], out: Tensor) -> Tensor:
    """Run launches one after another for an op that writes into ``out``; return it."""
    for launch in launches:
        launch.run(out)
    return out

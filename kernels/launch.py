"""A kernel with its arguments, to be run on a device or compiled ahead of time without one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import triton
from torch import Tensor

Meta = Mapping[str, Any]
"""A kernel's arguments by name, including those of its configuration."""

PLAIN = triton.Config({}, num_warps=4)
"""The configuration of kernels without tunable parameters."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of one Triton kernel.

    Kernels are both launched and compiled ahead of time from here, so that the kernels compiled without a GPU
    are those that run on one.

    Args:
        kernel: a function decorated with ``triton.jit``.
        grid: function from arguments and configuration to the number of programs on up to three axes.
        arguments: all arguments of the kernel by name, except those of its configuration.
        config: tile sizes, warps and stages.
    """

    kernel: Any
    grid: Callable[[Meta], tuple[int, ...]]
    arguments: dict[str, Any] = field(repr=False)
    config: triton.Config = PLAIN

    def run(self, on: Tensor) -> None:
        """Launch the kernel on a tensor's device; an empty grid launches nothing."""
        if 0 in self.grid({**self.arguments, **self.config.kwargs}):
            return
        elsewhere = on.is_cuda and on.device.index != torch.cuda.current_device()
        with torch.cuda.device(on.device) if elsewhere else nullcontext():
            self.kernel[self.grid](**self.arguments, **self.config.all_kwargs())


def run_all(launches: Iterable[Launch], out: Tensor) -> Tensor:
    """Run an op's launches in order, which write into ``out``; return ``out``."""
    for launch in launches:
        launch.run(out)
    return out

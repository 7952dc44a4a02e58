"""A kernel with everything it is started with: run on a device, or compiled ahead of time without one."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

MOST_REGISTERS = 255
"""Of a thread. Where a kernel is told so, the assembler spills none to make room for more programs, which the
shared memory of wide heads would not let in."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of one Triton kernel.

    What starts a kernel and what compiles it ahead of time both begin here, so what is proven without a GPU
    is what runs on one.

    Args:
        kernel: a function under ``triton.jit``.
        grid: how many programs along up to three axes.
        arguments: all arguments of the kernel by name.
        num_warps: warps a program.
        num_stages: how many loads of a loop are in flight.
        max_registers: of a thread, so that a multiprocessor holds as many programs as planned; None for any.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: dict[str, Any] = field(repr=False)
    num_warps: int = 4
    num_stages: int = 3
    max_registers: int | None = None

    @property
    def options(self) -> dict[str, int | bool]:
        """What the compiler is told; that products and sums fuse is a default that Triton changes in 3.10."""
        options = {"num_warps": self.num_warps, "num_stages": self.num_stages, "enable_fp_fusion": True}
        return options if self.max_registers is None else {**options, "maxnreg": self.max_registers}

    def run(self, on: Tensor) -> None:
        """Start the kernel on a tensor's device; an empty grid starts nothing."""
        if 0 in self.grid:
            return
        elsewhere = on.is_cuda and on.device.index != torch.cuda.current_device()
        with torch.cuda.device(on.device) if elsewhere else nullcontext():
            self.kernel[self.grid](**self.arguments, **self.options)


def run_all(launches: Iterable[Launch], out: Tensor) -> Tensor:
    """Run launches one after another for an op that writes into ``out``; return it."""
    for launch in launches:
        launch.run(out)
    return out

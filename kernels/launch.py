"""A kernel with its arguments: run on a device, or compiled ahead of time without one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import triton
from torch import Tensor

INTERPRETED = bool(triton.knobs.runtime.interpret)
"""Whether kernels run in Triton's interpreter, where nothing can be timed and so nothing is tuned."""

Meta = Mapping[str, Any]
"""A kernel's arguments by name, those of its configuration included."""


class Tunable:
    """A kernel and the configurations among which ``triton.autotune`` chooses, once for each shape class.

    Args:
        kernel: a function under ``triton.jit``.
        configs: the configurations, the best guess first; the last fits any shape.
        key: arguments that make up the shape class; Triton adds the types of tensors.
        fits: whether a configuration is worth trying for some arguments.
    """

    def __init__(
        self,
        kernel: Any,
        configs: Sequence[triton.Config],
        key: Sequence[str],
        fits: Callable[[triton.Config, Meta], bool],
    ) -> None:
        self.kernel = kernel
        self.configs = configs
        self._fits = fits
        prune = {"early_config_prune": lambda _, named, **more: self.fitting({**named, **more})}
        self.tuned = triton.autotune(list(configs), list(key), prune_configs_by=prune)(kernel)

    def fitting(self, arguments: Meta) -> list[triton.Config]:
        """Return the configurations that fit, at least one."""
        return [each for each in self.configs if self._fits(each, arguments)] or [self.configs[-1]]


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of one Triton kernel.

    What starts a kernel and what compiles it ahead of time both begin here, so that what is compiled without
    a GPU is what runs on one.

    Args:
        kernel: a function under ``triton.jit``, or a `Tunable`.
        grid: programs along up to three axes, from the arguments and the configuration.
        arguments: all arguments of the kernel by name, without those of its configuration.
        config: the configuration; None to let a `Tunable` find the fastest (the first that fits, where
            kernels are interpreted).
    """

    kernel: Any
    grid: Callable[[Meta], tuple[int, ...]]
    arguments: dict[str, Any] = field(repr=False)
    config: triton.Config | None = None

    @property
    def configs(self) -> list[triton.Config]:
        """The configurations that it may run in."""
        if self.config is not None:
            return [self.config]
        return self.kernel.fitting(self.arguments) if isinstance(self.kernel, Tunable) else [PLAIN]

    def run(self, on: Tensor) -> None:
        """Start the kernel on a tensor's device; an empty grid starts nothing."""
        tunable = isinstance(self.kernel, Tunable)
        if tunable and self.config is None and not INTERPRETED:
            kernel, options, blocks = self.kernel.tuned, {}, self.kernel.configs[-1].kwargs
        else:
            kernel, config = self.kernel.kernel if tunable else self.kernel, self.configs[0]
            options, blocks = config.all_kwargs(), config.kwargs
        if 0 in self.grid({**self.arguments, **blocks}):
            return
        elsewhere = on.is_cuda and on.device.index != torch.cuda.current_device()
        with torch.cuda.device(on.device) if elsewhere else nullcontext():
            kernel[self.grid](**self.arguments, **options)


PLAIN = triton.Config({}, num_warps=4)
"""The configuration of kernels that have nothing to choose."""


def run_all(launches: Iterable[Launch], out: Tensor) -> Tensor:
    """Run launches one after another for an op that writes into ``out``; return it."""
    for launch in launches:
        launch.run(out)
    return out

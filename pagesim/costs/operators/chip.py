"""Which GPU's tables stand for a GPU: its own, or those of a chip of the same generation."""

from __future__ import annotations

from typing import NamedTuple

from pagesim.costs.operators.tables import OperatorTables, bundled_gpus, bundled_tables
from pagesim.hardware import GpuSpec
from pagesim.hardware import gpu as gpu_of

GENERATIONS = {
    **{80: "a100-80gb", 89: "l40s", 90: "h100", 100: "b200", 103: "b300", 120: "rtx-pro-6000"},
    121: "rtx-pro-6000",
}
"""By compute capability, the GPU whose tables stand for others of the same generation."""


class Chip(NamedTuple):
    """Measurements for a GPU.

    Attributes:
        gpu: for which seconds are wanted.
        measured: the GPU that was measured, itself or one of its generation.
        tables: of the one that was measured.
        release: of the engine that is simulated, such as ``vllm 0.19.0``; where two releases differ much, the
            nearer one counts.
    """

    gpu: GpuSpec
    measured: GpuSpec
    tables: OperatorTables
    release: str = ""

    @property
    def is_measured(self) -> bool:
        """Whether the GPU itself was measured."""
        return self.gpu.name == self.measured.name


def chip_of(gpu: GpuSpec, release: str = "") -> Chip | None:
    """Return the bundled measurements for a GPU; None if none of its generation was measured.

    Args:
        gpu: any.
        release: see `Chip`.
    """
    name = gpu.name if gpu.name in bundled_gpus() else GENERATIONS.get(gpu.capability or 0, "")
    tables = bundled_tables(name)
    return None if tables is None else Chip(gpu, gpu_of(name), tables, release)

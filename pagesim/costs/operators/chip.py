"""The bundled tables of a GPU."""

from __future__ import annotations

from typing import NamedTuple

from pagesim.costs.operators.tables import OperatorTables, bundled_gpus, bundled_tables
from pagesim.hardware import GpuSpec


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
    """Return the bundled measurements of a GPU; None if there are none.

    Those of another GPU of its generation do not stand for it: an RTX 4090 by an L40S's tables is 24 % too
    slow and an H100 PCIe by an H100's 12 %, where the roofline is 1 and 8 % off (docs/accuracy.md).

    Args:
        gpu: any.
        release: see `Chip`.
    """
    tables = bundled_tables(gpu.name) if gpu.name in bundled_gpus() else None
    return None if tables is None else Chip(gpu, gpu, tables, release)

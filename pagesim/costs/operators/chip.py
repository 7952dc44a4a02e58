"""The bundled tables of a GPU."""

from __future__ import annotations

from typing import NamedTuple

from pagesim.costs.operators.tables import OperatorTables, bundled_tables
from pagesim.hardware import GpuSpec


class Chip(NamedTuple):
    """A GPU and what was measured on it.

    Attributes:
        gpu: with its peak rates.
        tables: of its operators.
        release: of the engine that is simulated, such as ``vllm 0.19.0``; where two releases differ much, the
            nearer one counts.
    """

    gpu: GpuSpec
    tables: OperatorTables
    release: str = ""


def chip_of(gpu: GpuSpec, release: str = "") -> Chip | None:
    """Return the bundled measurements of a GPU; None if there are none.

    Those of another GPU of its generation do not stand for it: an RTX 4090 by an L40S's tables is 24 % too
    slow and an H100 PCIe by an H100's 12 %, where the roofline is 1 and 8 % off
    (docs/validation/accuracy.md).

    Args:
        gpu: any.
        release: see `Chip`.
    """
    tables = bundled_tables(gpu.name)
    return None if tables is None else Chip(gpu, tables, release)

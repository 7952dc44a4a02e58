"""The GPUs that pagesim knows by name: the rows of ``gpus.json``, checked and in units of their `GpuSpec`."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt

from pagesim.hardware.gpu_spec import GIB, GpuSpec, Link

FILE = Path(__file__).with_name("gpus.json")


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LinkRow(_Row):
    """A link: GB/s in one direction, µs until the first byte, where these come from."""

    name: str
    gb_per_s: PositiveFloat
    latency_us: PositiveFloat
    note: str

    def link(self) -> Link:
        """Return it in bytes/s and seconds."""
        return Link(round(self.gb_per_s * 1e9, 3), self.latency_us / 1e6, self.note)


class GpuRow(_Row):
    """A GPU, as `GpuSpec` describes it: memory in GiB, rates in TFLOP/s and GB/s, links by their names.

    ``date`` says when the numbers were looked up where ``source`` says; ``note`` is for readers of the file.
    """

    name: str
    memory_gib: PositiveFloat
    nominal_bytes: PositiveInt
    listed_mib: PositiveInt | None = None
    capability: int | None = None
    fp16_tflops: PositiveFloat
    fp8_tflops: PositiveFloat | None = None
    fp4_tflops: PositiveFloat | None = None
    hbm_gb_per_s: PositiveFloat
    host: str
    peer: str
    source: str
    date: date
    note: str = ""

    def spec(self, links: dict[str, Link]) -> GpuSpec:
        """Return it in bytes, operations/s and bytes/s."""
        return GpuSpec(
            name=self.name,
            memory_bytes=int(self.memory_gib * GIB),
            nominal_bytes=self.nominal_bytes,
            fp16_flops=self.fp16_tflops * 1e12,
            fp8_flops=self.fp8_tflops and self.fp8_tflops * 1e12,
            hbm_bytes_per_s=self.hbm_gb_per_s * 1e9,
            host=links[self.host],
            peer=links[self.peer],
            source=self.source,
            fp4_flops=self.fp4_tflops and self.fp4_tflops * 1e12,
            listed_mib=self.listed_mib,
            capability=self.capability,
        )


class Sheets(_Row):
    """What ``gpus.json`` holds."""

    links: tuple[LinkRow, ...]
    gpus: tuple[GpuRow, ...]


def read(path: Path = FILE) -> dict[str, GpuSpec]:
    """Return the GPUs of a file by name.

    Raises:
        ValueError: a row is not as the schema has it.
        KeyError: a GPU names a link that has no row.
    """
    sheets = Sheets.model_validate_json(path.read_bytes())
    links = {row.name: row.link() for row in sheets.links}
    return {row.name: row.spec(links) for row in sheets.gpus}

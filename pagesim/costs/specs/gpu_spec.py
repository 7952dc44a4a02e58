"""GpuSpec: memory, peak rates and links of a GPU."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 1 << 30
"""Bytes."""


@dataclass(frozen=True, slots=True)
class Link:
    """A path for copies: bytes/s in one direction, seconds until the first byte, where these come from."""

    bytes_per_s: float
    latency_s: float
    note: str


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """A GPU.

    Args:
        name: what users call it.
        memory_bytes: device memory as the CUDA or HIP runtime reports it; drivers differ by a few hundred MB.
        nominal_bytes: what the name says, GB read as GiB (for an odd size as the vendor's decimal GB).
        fp16_flops: peak dense fp16 or bf16 tensor operations a second, accumulating in fp32.
        fp8_flops: the same for fp8, or None where there is no such unit.
        hbm_bytes_per_s: peak bandwidth of the device memory.
        host: the link to the host's memory.
        peer: the link to another GPU of the same server.
        source: where these numbers stand, in one line.
    """

    name: str
    memory_bytes: int
    nominal_bytes: int
    fp16_flops: float
    fp8_flops: float | None
    hbm_bytes_per_s: float
    host: Link
    peer: Link
    source: str

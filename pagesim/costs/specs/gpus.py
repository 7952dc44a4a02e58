"""GpuSpec: memory, peak rates and links of the GPUs that pagesim knows by name."""

from __future__ import annotations

from dataclasses import dataclass

from pagesim.costs.specs.names import find
from pagesim.setup.plugins import Plugins

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
        memory_bytes: device memory as the CUDA runtime reports it; drivers differ by a few hundred MB.
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


_PCIE4 = Link(
    25e9, 10e-6, "PCIe 4.0 x16: 31.5 GB/s on the wire, about 25 in large pinned copies; typical latency"
)
_PCIE5 = Link(
    51e9, 10e-6, "PCIe 5.0 x16: 63 GB/s on the wire, about 51 in large pinned copies; typical latency"
)
_NVLINK3 = Link(300e9, 5e-6, "NVLink 3: 600 GB/s both ways together, peak; latency typical")
_NVLINK4 = Link(450e9, 5e-6, "NVLink 4: 900 GB/s both ways together, peak; latency typical")
_THROUGH_PCIE4 = Link(
    25e9, 20e-6, "no NVLink: PCIe 4.0 x16, at best the rate of the host link; typical latency"
)

_GPUS = {
    spec.name: spec
    for spec in (
        GpuSpec(
            name="a100-40gb",
            memory_bytes=42_298_834_944,
            nominal_bytes=40 * GIB,
            fp16_flops=312e12,
            fp8_flops=None,
            hbm_bytes_per_s=1555e9,
            host=_PCIE4,
            peer=_NVLINK3,
            source="NVIDIA A100 datasheet (SXM4 40GB); memory from deviceQuery, 39.39 GiB",
        ),
        # Drivers report 79.15 to 79.26 GiB. The paper's 3,757 blocks of OPT-175B follow from 79.18.
        GpuSpec(
            name="a100-80gb",
            memory_bytes=int(79.18 * GIB),
            nominal_bytes=80 * GIB,
            fp16_flops=312e12,
            fp8_flops=None,
            hbm_bytes_per_s=2039e9,
            host=_PCIE4,
            peer=_NVLINK3,
            source="NVIDIA A100 datasheet (SXM4 80GB); memory 79.18 GiB in PyTorch",
        ),
        GpuSpec(
            name="h100",
            memory_bytes=85_045_477_376,
            nominal_bytes=80 * GIB,
            fp16_flops=989.4e12,
            fp8_flops=1978.9e12,
            hbm_bytes_per_s=3.35e12,
            host=_PCIE5,
            peer=_NVLINK4,
            source="NVIDIA H100 datasheet (SXM5 80GB), half its rates with sparsity; memory from deviceQuery",
        ),
        GpuSpec(
            name="h200",
            memory_bytes=int(139.81 * GIB),
            nominal_bytes=141_000_000_000,
            fp16_flops=989.4e12,
            fp8_flops=1978.9e12,
            hbm_bytes_per_s=4.8e12,
            host=_PCIE5,
            peer=_NVLINK4,
            source="NVIDIA H200 datasheet (SXM), half its rates with sparsity; memory 139.81 GiB in PyTorch",
        ),
        GpuSpec(
            name="l4",
            memory_bytes=23_612_293_120,
            nominal_bytes=24 * GIB,
            fp16_flops=121e12,
            fp8_flops=242.5e12,
            hbm_bytes_per_s=300e9,
            host=_PCIE4,
            peer=_THROUGH_PCIE4,
            source="NVIDIA L4 datasheet, half of its rates with sparsity; memory from deviceQuery",
        ),
        GpuSpec(
            name="rtx-4090",
            memory_bytes=25_386_352_640,
            nominal_bytes=24 * GIB,
            fp16_flops=165.2e12,
            fp8_flops=330.3e12,
            hbm_bytes_per_s=1008e9,
            host=_PCIE4,
            peer=_THROUGH_PCIE4,
            source="NVIDIA Ada whitepaper, appendix A (accumulating in fp32); memory from deviceQuery",
        ),
        GpuSpec(
            name="rtx-3090",
            memory_bytes=int(23.58 * GIB),
            nominal_bytes=24 * GIB,
            fp16_flops=71.2e12,
            fp8_flops=None,
            hbm_bytes_per_s=936.2e9,
            host=_PCIE4,
            peer=_THROUGH_PCIE4,
            source="NVIDIA GA102 whitepaper (accumulating in fp32); memory 23.58 GiB in a log of vLLM",
        ),
        # nvidia-smi says 46,068 MiB, and PyTorch sees 44.4 to 44.5 GiB of them.
        GpuSpec(
            name="l40s",
            memory_bytes=int(44.42 * GIB),
            nominal_bytes=48 * GIB,
            fp16_flops=362.05e12,
            fp8_flops=724.1e12,  # the datasheet rounds it to 733
            hbm_bytes_per_s=864e9,
            host=_PCIE4,
            peer=_THROUGH_PCIE4,
            source="NVIDIA L40S datasheet, half of its rates with sparsity; memory 44.42 GiB in logs of vLLM",
        ),
    )
}


GPUS: Plugins[GpuSpec] = Plugins("gpu", "pagesim.gpus", _GPUS)
"""GPUs by name, and those that others bring."""


def gpu(name: str) -> GpuSpec:
    """Return the GPU of that name.

    Raises:
        PagesimError: no such GPU; the message lists names like it.
    """
    if name.lower() not in _GPUS and name in GPUS:
        return GPUS.find(name)
    return find("GPU", name, _GPUS)


def gpus() -> tuple[GpuSpec, ...]:
    """Return every GPU that is known by name."""
    return tuple(GPUS.find(name) for name in GPUS.names())

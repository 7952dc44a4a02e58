"""GpuSpec: memory, peak rates and links of a GPU."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

from pagesim.models.weights import Compute

GIB = 1 << 30
"""Bytes per GiB."""

_RATES = {"kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12, "Gb/s": 1e9 / 8}
_TIMES = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0}  # in a second
_NUMBER = r"(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)"
_LINK = re.compile(rf"{_NUMBER}({'|'.join(_RATES)})(?::{_NUMBER}({'|'.join(_TIMES)}))?")


@dataclass(frozen=True, slots=True)
class AllReduces:
    """Measured all-reduces among the GPUs of one server.

    Attributes:
        bytes: input bytes per GPU, ascending, ``[N]``.
        seconds: seconds of each size by number of GPUs, ``[N]`` each.
        source: where they were measured.
    """

    bytes: tuple[float, ...]
    seconds: Mapping[int, tuple[float, ...]]
    source: str


@dataclass(frozen=True, slots=True)
class Link:
    """A path for copies: bytes/s in one direction, latency in seconds, and a note on their source.

    Attributes:
        all_reduces: measured all-reduces over the link; None if there are none.
    """

    bytes_per_s: float
    latency_s: float
    note: str
    all_reduces: AllReduces | None = None

    def all_reduce_s(self, size: float, gpus: int, share: float = 1.0) -> float:
        """Return the seconds of an all-reduce among the GPUs of one server.

        Measured ones are interpolated linearly between sizes; beyond the largest, its bytes/s are used. For
        an unmeasured number of GPUs, the next larger measured one is used, or else the largest. Without
        measurements, each GPU sends every byte 2·(gpus − 1)/gpus times, as in a ring.

        Args:
            size: input bytes per GPU.
            gpus: number of GPUs, at least 2.
            share: fraction of the bandwidth that is achieved, used only without measurements.
        """
        measured = self.all_reduces
        if measured is None:
            return self.latency_s + 2 * (gpus - 1) / gpus * size / (self.bytes_per_s * share)
        counts = sorted(measured.seconds)
        seconds = measured.seconds[next((each for each in counts if each >= gpus), counts[-1])]
        sizes = measured.bytes
        if size > sizes[-1]:
            return seconds[-1] * size / sizes[-1]
        place = min(max(bisect_left(sizes, size), 1), len(sizes) - 1)
        before, after = sizes[place - 1 : place + 1]
        part = max(0.0, size - before) / (after - before)
        return seconds[place - 1] + part * (seconds[place] - seconds[place - 1])


def parse_link(text: str) -> Link:
    """Parse a link from ``BANDWIDTH[:LATENCY]``, such as ``25GB/s`` or ``25GB/s:10us``.

    Raises:
        ValueError: the text has another form, or its bandwidth is 0.
    """
    match = _LINK.fullmatch(text.strip())
    if match is None or not float(match[1]):
        raise ValueError("must be BANDWIDTH[:LATENCY], such as 25GB/s or 25GB/s:10us")
    latency = float(match[3]) / _TIMES[match[4]] if match[3] else 0.0
    return Link(float(match[1]) * _RATES[match[2]], latency, "as given")


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """Specification of a GPU.

    Args:
        name: catalogue name, as used in options.
        memory_bytes: device memory as the CUDA or HIP runtime reports it; drivers differ by a few hundred MB.
        nominal_bytes: advertised memory, with GB read as GiB (for an odd size as the vendor's decimal GB).
        fp16_flops: peak dense fp16 or bf16 tensor FLOP/s, accumulating in fp32.
        fp8_flops: peak dense fp8 tensor FLOP/s; None if the GPU has no such units.
        hbm_bytes_per_s: peak bandwidth of the device memory.
        host: link to host memory.
        peer: link to another GPU of the same server.
        source: source of these numbers, in one line.
        fp4_flops: peak dense nvfp4 tensor FLOP/s; None if the GPU has no such units.
        listed_mib: memory in MiB as listed by nvidia-smi, which SGLang uses for sizing; None if unknown.
        capability: NVIDIA's compute capability times ten (90 for Hopper), by which vLLM chooses kernels and
            so the block size; 0 for another vendor's GPU, None if unknown.
        half_rate: whether tensor cores are limited to half their rate when accumulating in fp32, as on
            GeForce GPUs; large GEMMs then come close to the peak.
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
    fp4_flops: float | None = None
    listed_mib: int | None = None
    capability: int | None = None
    half_rate: bool = False

    def flops(self, compute: Compute) -> float:
        """Return the peak FLOP/s with both factors in fp16, fp8 or nvfp4.

        A GPU without such units computes in fp16, as vLLM's weight-only kernels do.
        """
        return self._rate(compute) or self.fp16_flops

    def has(self, compute: Compute) -> bool:
        """Return whether the GPU has units for this type."""
        return self._rate(compute) is not None

    def _rate(self, compute: Compute) -> float | None:
        return {"fp16": self.fp16_flops, "fp8": self.fp8_flops, "fp4": self.fp4_flops}[compute]

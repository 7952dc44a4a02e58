"""GpuSpec: memory, peak rates and links of a GPU."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

from pagesim.models.weights import Compute

GIB = 1 << 30
"""Bytes."""

_RATES = {"kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12, "Gb/s": 1e9 / 8}
_TIMES = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0}  # in a second
_NUMBER = r"(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)"
_LINK = re.compile(rf"{_NUMBER}({'|'.join(_RATES)})(?::{_NUMBER}({'|'.join(_TIMES)}))?")


@dataclass(frozen=True, slots=True)
class AllReduces:
    """Measured all-reduces among the GPUs of one server.

    Attributes:
        bytes: of what each GPU has to be summed, ascending, ``[N]``.
        seconds: by GPUs, of each size, ``[N]`` each.
        source: where they were measured.
    """

    bytes: tuple[float, ...]
    seconds: Mapping[int, tuple[float, ...]]
    source: str


@dataclass(frozen=True, slots=True)
class Link:
    """A path for copies: bytes/s in one direction, seconds until the first byte, where these come from.

    Attributes:
        all_reduces: over it, where they were measured.
    """

    bytes_per_s: float
    latency_s: float
    note: str
    all_reduces: AllReduces | None = None

    def all_reduce_s(self, size: float, gpus: int, share: float = 1.0) -> float:
        """Return the seconds of an all-reduce among the GPUs of one server.

        Of measured ones the straight line between two sizes is taken, and beyond the largest its bytes a
        second; among a number of GPUs that was not measured, what the next larger number takes, or the
        largest. Of others each GPU sends every byte 2·(gpus − 1)/gpus times, as in a ring.

        Args:
            size: bytes that each GPU has to be summed.
            gpus: at least 2.
            share: of the bandwidth that is reached, where none was measured.
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
    """Return a link from ``BANDWIDTH[:LATENCY]``, such as ``25GB/s`` or ``25GB/s:10us``.

    Raises:
        ValueError: the text is something else, or there is no bandwidth.
    """
    match = _LINK.fullmatch(text.strip())
    if match is None or not float(match[1]):
        raise ValueError("must be BANDWIDTH[:LATENCY], such as 25GB/s or 25GB/s:10us")
    latency = float(match[3]) / _TIMES[match[4]] if match[3] else 0.0
    return Link(float(match[1]) * _RATES[match[2]], latency, "as given")


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
        fp4_flops: the same as ``fp8_flops`` for nvfp4.
        listed_mib: memory in MiB as nvidia-smi lists it, by which SGLang sizes; None where it is not known.
        capability: NVIDIA's compute capability, ten times (90 for Hopper), by which vLLM chooses kernels and
            so the tokens of a block; 0 for another vendor's GPU, None where it is not known.
        half_rate: whether tensor cores that accumulate in fp32 are held to half of what they could do, as a
            GeForce's are: large products then reach nearly all of the peak.
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
        """Return peak operations a second where both factors are in fp16, fp8 or nvfp4.

        A GPU without units for it computes in fp16, as vLLM's kernels for quantized weights alone do.
        """
        return self._rate(compute) or self.fp16_flops

    def has(self, compute: Compute) -> bool:
        """Return whether there are units for it."""
        return self._rate(compute) is not None

    def _rate(self, compute: Compute) -> float | None:
        return {"fp16": self.fp16_flops, "fp8": self.fp8_flops, "fp4": self.fp4_flops}[compute]

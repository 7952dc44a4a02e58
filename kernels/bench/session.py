"""A session of the bench: its device, its reference rates, and how a case is measured."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from importlib import import_module
from math import prod
from typing import Any

import torch

from pagesim.errors import PagesimError
from pagesim.kernels.bench.grid import OPS
from pagesim.kernels.bench.rows import FAILED, OK, OUT_OF_MEMORY, UNAVAILABLE, Point
from pagesim.kernels.machine import Machine, available_bytes, describe_machine, digest
from pagesim.kernels.requirements import Unavailable, require_device
from pagesim.kernels.timing import Call, Timing, WallClock, time_kernel

DEVICE_COPY = "device-copy"
"""The reference for everything within a device's own memory."""

_PART_BYTES = 64 << 20

LINK_BYTES = 256 << 20
"""Size of the copy that measures the link between device and host."""

COPY_BYTES = {"cuda": 256 << 20, "cpu": 64 << 20}
"""Size of the copy that measures a device's own memory, larger than any cache. From 512 MiB on, the driver
copies in another way, which is a fifth slower on an H100."""

MATRIX = {"cuda": 8192, "cpu": 512}
"""Rows and columns of the matrices whose product measures a device's compute rate."""

CLOCKS_S = 0.5
"""Seconds of work before these: an idle GPU's clocks are low, and rise within a fraction of a second."""


@dataclass(frozen=True)
class Case:
    """A prepared point: what to call, and how much work that is.

    Args:
        calls: the same work on different inputs.
        bytes_moved: minimum number of bytes that the work must read and write, counted once each.
        flops: number of operations.
        check: runs the work once on poisoned outputs and returns max|error| / max|reference|.
        tolerance: maximum allowed result of ``check``.
        reference: reference for the bandwidth: ``device-copy``, ``pinned-copy-out`` or ``pinned-copy-in``.
        by_wall: whether the host takes part, so that its clock is used.
        measure: measures in place of ``calls``, and returns additional columns.
    """

    calls: Sequence[Call]
    bytes_moved: int = 0
    flops: int = 0
    check: Callable[[], float] | None = None
    tolerance: float = 0.0
    reference: str = DEVICE_COPY
    by_wall: bool = False
    measure: Callable[[float], tuple[Timing, dict[str, Any]]] | None = None


class WrongResult(PagesimError):
    """An op returns a wrong result, so its speed does not matter."""


Prepare = Callable[[Point, "Session"], Case]


def prepare_of(point: Point) -> Prepare:
    """Return the function that prepares a point of the bench; each kind of op has a file of cases."""
    module = OPS[point.bench][point.op].module
    return import_module(f"pagesim.kernels.bench.{module}").prepare  # type: ignore[no-any-return]


class Session:
    """The measurements of one process on one device.

    Args:
        device: ``cpu`` or ``cuda``.
        budget_s: seconds to time each point for, after preparation and warm-up.
        seed: seed of all random inputs.

    Raises:
        PagesimError: the device is unknown or not available, or a number is invalid.
    """

    def __init__(self, device: str, budget_s: float = 0.2, seed: int = 0) -> None:
        require_device(device)
        if not 0 < budget_s <= 60:
            raise PagesimError(f"seconds is {budget_s}; it must be above 0 and at most 60, for each point")
        self.device = torch.device(device)
        self.budget_s = budget_s
        self.seed = seed
        self.lost: str | None = None
        """Why this process can no longer use the GPU, after such a failure."""
        self._pinned: torch.Tensor | None = None
        self._links: dict[str, float] = {}

    @cached_property
    def machine(self) -> Machine:
        """The machine, described once its clocks have risen."""
        if self.device.type == "cuda":
            _ = self.copy_gb_per_s
        return describe_machine(self.device.type)

    @cached_property
    def copy_gb_per_s(self) -> float:
        """The device's copy bandwidth in this session, read + written."""
        case, seconds = self._best("copy", "device-copy", piece_bytes=COPY_BYTES[self.device.type])
        return case.bytes_moved / seconds / 1e9

    @cached_property
    def peak_tflop_per_s(self) -> float:
        """The rate of a large matrix product in this session: in fp16 on a GPU, in fp32 on a CPU."""
        dtype, size = "fp16" if self.device.type == "cuda" else "fp32", MATRIX[self.device.type]
        case, seconds = self._best("gemm", "linear", m=size, n=size, k=size, dtype=dtype)
        return case.flops / seconds / 1e12

    def _best(self, bench: str, op: str, **size: Any) -> tuple[Case, float]:
        """Return an op of the bench at its most efficient size, and its duration in seconds."""
        point = Point(bench, op, size)
        case = prepare_of(point)(point, self)
        until = time.perf_counter() + CLOCKS_S
        while self.device.type == "cuda" and time.perf_counter() < until:
            case.calls[0]()
            torch.cuda.synchronize()
        return case, self.time(case).median_s

    def reference_gb_per_s(self, reference: str) -> float:
        """Return the bandwidth in this session of a case's reference."""
        if reference == DEVICE_COPY:
            return self.copy_gb_per_s
        if reference not in self._links:
            op, _, direction = reference.rpartition("-")
            case, seconds = self._best("swap", op, direction=direction, piece_bytes=LINK_BYTES)
            self._links[reference] = case.bytes_moved / seconds / 1e9
        return self._links[reference]

    def host_bytes(self, size: int) -> torch.Tensor:
        """Return ``size`` bytes of host memory, pinned if on a GPU; every call returns the same memory.

        Pinning takes longer than most measurements, so it is done once.
        """
        if self._pinned is None or len(self._pinned) < size:
            self._pinned = None
            check_host_room(size)
            self._pinned = torch.empty(size, dtype=torch.uint8, pin_memory=self.device.type == "cuda")
        return self._pinned[:size]

    def generator(self, point: Point) -> torch.Generator:
        """Return a point's own CPU random generator, so that the order of points does not matter."""
        return torch.Generator().manual_seed(int(digest([self.seed, point.row()]), 16))

    def empty(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialized tensor on the device.

        Raises:
            MemoryError: the host lacks memory for it; a GPU raises its own error.
        """
        if self.device.type == "cpu":
            check_host_room(prod(shape) * dtype.itemsize)
        return torch.empty(shape, dtype=dtype, device=self.device)

    def random(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor with random contents on the device; errors as for ``empty``."""
        return self.fill(self.empty(*shape, dtype=dtype))

    def fill(self, tensor: torch.Tensor) -> torch.Tensor:
        """Fill a tensor with normally distributed numbers or random bytes, never with zeros."""
        if tensor.device.type != self.device.type:  # the GPU is much faster at this than the host
            for part in tensor.flatten().chunk(1 + tensor.nbytes // _PART_BYTES):
                part.copy_(self.random(len(part), dtype=tensor.dtype))
            return tensor
        if tensor.dtype == torch.uint8:
            return tensor.random_(0, 256)
        if tensor.dtype.itemsize == 1:  # FP8 has no generator of its own
            for part in tensor.flatten().chunk(1 + tensor.nbytes // _PART_BYTES):
                part.copy_(self.random(len(part), dtype=torch.float16))
            return tensor
        return tensor.normal_()

    def time(self, case: Case) -> Timing:
        """Return the duration of one of a case's calls."""
        if case.by_wall and self.device.type == "cuda":
            return WallClock().time(case.calls, self.budget_s)
        return time_kernel(case.calls, self.device, self.budget_s, case.bytes_moved)

    def measure(self, point: Point, prepare: Prepare) -> dict[str, Any]:
        """Return a point's measurements, or why there are none; check ``lost`` afterwards."""
        torch.manual_seed(int(digest([self.seed, point.row()]), 16) % 2**63)
        try:
            measured = self._measured(prepare(point, self))
        except Unavailable as error:
            measured = {"status": UNAVAILABLE, "error": str(error)}
        except (torch.OutOfMemoryError, MemoryError) as error:
            measured = {"status": OUT_OF_MEMORY, "error": _first_line(error)}
        except Exception as error:  # whatever an op or peer raises, go on with the next point
            memory = "can't allocate memory" in str(error) or "out of memory" in str(error)
            measured = {"status": OUT_OF_MEMORY if memory else FAILED, "error": _first_line(error)}
        if measured["status"] != OK:
            self._recover()
        return {**measured, "date": datetime.now(UTC).isoformat(timespec="seconds")}

    def _measured(self, case: Case) -> dict[str, Any]:
        error = case.check() if case.check else None
        if error is not None and not error <= case.tolerance:  # NaN is wrong too
            raise WrongResult(
                f"the result is off by {error:.2g} of the largest; {case.tolerance:g} is allowed"
            )
        if case.measure:
            timing, columns = case.measure(self.budget_s)
        else:
            timing, columns = self.time(case), {}
        bandwidth = case.bytes_moved / timing.median_s / 1e9
        reference = self.reference_gb_per_s(case.reference)
        rate, peak = case.flops / timing.median_s / 1e12, self.peak_tflop_per_s if case.flops else None
        return {
            "status": OK,
            "median_s": timing.median_s,
            "p20_s": timing.p20_s,
            "p80_s": timing.p80_s,
            "noise": timing.noise,
            "samples": timing.samples,
            "clock": timing.clock,
            "bytes_moved": case.bytes_moved,
            "flops": case.flops,
            "gb_per_s": bandwidth,
            "tflop_per_s": rate,
            "peak_tflop_per_s": peak,
            "of_peak": rate / peak if peak else None,
            "reference": case.reference,
            "reference_gb_per_s": reference,
            "fraction": bandwidth / reference,
            "max_error": error,
            **columns,
        }

    def _recover(self) -> None:
        gc.collect()  # an exception's frames held tensors
        if self.device.type != "cuda":
            return
        try:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        except RuntimeError as error:
            self.lost = _first_line(error)


def check_host_room(size: int) -> None:
    """Check that the host has ``size`` bytes available, as Linux overcommits and kills processes later.

    Raises:
        MemoryError: it does not.
    """
    room = available_bytes()
    if size > 0.8 * room:
        raise MemoryError(f"{size / 1e9:.3g} GB are needed and the host has {room / 1e9:.3g} GB available")


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__

"""Reliable timing of a single call with cold caches: a median with its spread and its noise floor.

| clock | for | what is timed |
|---|---|---|
| ``graph`` | kernels | replays, over a millisecond, of a CUDA graph that holds every call once |
| ``events`` | kernels with small inputs | each call between two CUDA events, after reading 12× L2 |
| ``wall`` | work involving the host | each call and a wait for the GPU, by the host's clock |
| ``cpu`` | the reference path | runs of calls, by the host's clock |

A kernel that is called repeatedly on the same inputs reads them from L2, which never happens in a server.
So the caller passes several calls that do the same on different inputs. A graph goes through all of them, and
``rotations`` returns how many are needed to exceed three times the L2. If inputs are too small for that, L2
is flushed by reading another buffer; writing it, as is often done, leaves dirty lines whose write-back is
then timed, too. In this case each call is a graph of its own, so that its launch from Python is hidden behind
the flush; a call that cannot be captured in a graph is made directly.

Every measurement is made twice in a row. The difference between the two medians is its noise: smaller
differences between two kernels mean nothing.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, ClassVar

import numpy as np
import torch

from pagesim.errors import PagesimError

__all__ = ["CpuClock", "Timing", "rotations", "time_kernel"]

Call = Callable[[], Any]
"""Does the work once, possibly asynchronously; its return value is dropped."""

CACHES_OVER = 3
"""Inputs are rotated over this many times the L2."""

FLUSH_OVER = 12
"""L2 is flushed by reading this many times its size, for 0.2 ms, while the host launches the call."""

MIN_SAMPLES, MAX_SAMPLES = 5, 1000
"""Bounds on the samples in each of the two rounds."""

_SHORTEST_S = 50e-6
"""Minimum duration of a sample on the host's clock; several shorter calls are timed together."""

_FLUSHED_CALLS = 4
"""Number of inputs used with a flush: a few suffice, and capturing a graph takes a tenth of a second."""

_SHORTEST_GRAPH_S = 1e-3
"""Minimum duration of a sample of graph replays."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Duration of one call, in seconds.

    Attributes:
        median_s: median of both rounds together.
        p20_s: 20th percentile of the samples.
        p80_s: 80th percentile of the samples.
        noise: difference of the two rounds' medians, divided by the median.
        samples: number of samples in both rounds.
        clock: kind of clock: ``graph``, ``events``, ``wall`` or ``cpu``.
    """

    median_s: float
    p20_s: float
    p80_s: float
    noise: float
    samples: int
    clock: str


class Clock(ABC):
    """Times calls; a subclass defines how samples are taken."""

    name: ClassVar[str]

    def time(self, calls: Sequence[Call], budget_s: float = 0.2) -> Timing:
        """Return the duration of one of the calls.

        Args:
            calls: the same work on different inputs, at least one call.
            budget_s: seconds for both rounds together, after warm-up; each round takes at least five
                samples.

        Raises:
            PagesimError: there are no calls, or the budget is not above 0.
        """
        if not calls:
            raise PagesimError("calls is empty; there must be something to time")
        if not budget_s > 0:
            raise PagesimError(f"budget_s is {budget_s}; it must be above 0")
        return self.take(self.prepare(calls), budget_s)

    def take(self, sample: Callable[[], float], budget_s: float) -> Timing:
        """Return the duration of a call from a function that takes one sample."""
        rounds = [np.array(_round(sample, budget_s / 2)) for _ in range(2)]
        both = np.concatenate(rounds)
        p20, median, p80 = np.percentile(both, (20, 50, 80)).tolist()
        first, second = (float(np.median(samples)) for samples in rounds)
        return Timing(median, p20, p80, abs(first - second) / median, len(both), self.name)

    @abstractmethod
    def prepare(self, calls: Sequence[Call]) -> Callable[[], float]:
        """Warm up and return a function that takes one sample: the seconds of a call."""


class CpuClock(Clock):
    """Times calls that have finished their work when they return."""

    name: ClassVar[str] = "cpu"

    def prepare(self, calls: Sequence[Call]) -> Callable[[], float]:
        began = time.perf_counter()
        for call in calls:
            call()
        rough = (time.perf_counter() - began) / len(calls)
        at_once = max(1, math.ceil(_SHORTEST_S / max(rough, 1e-9)))
        turn = cycle(calls)

        def sample() -> float:
            chosen = list(islice(turn, at_once))
            began = time.perf_counter()
            for call in chosen:
                call()
            return (time.perf_counter() - began) / at_once

        return sample


class WallClock(Clock):
    """Times calls together with a wait for everything that they started on the GPU."""

    name: ClassVar[str] = "wall"

    def prepare(self, calls: Sequence[Call]) -> Callable[[], float]:
        for call in calls:
            call()
        torch.cuda.synchronize()
        turn = cycle(calls)

        def sample() -> float:
            call = next(turn)
            began = time.perf_counter()
            call()
            torch.cuda.synchronize()
            return time.perf_counter() - began

        return sample


class EventClock(Clock):
    """Times each call between two CUDA events, flushing L2 before each call.

    Args:
        flush: reads more than L2 holds; if omitted, a buffer of 12 times its size is read.
    """

    name: ClassVar[str] = "events"

    def __init__(self, flush: Call | None = None) -> None:
        self._flush = flush

    def prepare(self, calls: Sequence[Call]) -> Callable[[], float]:
        # A reduction reads everything and writes almost nothing.
        flush = self._flush or torch.empty(FLUSH_OVER * l2_bytes() // 4, device="cuda").normal_().amax
        _warm_up([flush, *calls])
        calls = calls[:_FLUSHED_CALLS]
        graphs = [_captured([call]) for call in calls]
        turn = cycle([replay or call for replay, call in zip(graphs, calls, strict=True)])
        start, end = _events()

        def sample() -> float:
            call = next(turn)
            flush()
            start.record()
            call()
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end)) / 1e3

        return sample


class GraphClock(Clock):
    """Times replays of a CUDA graph of all calls, without launch overhead and with inputs larger than L2.

    The calls' inputs together must exceed three times the L2, see ``rotations``.
    """

    name: ClassVar[str] = "graph"

    def prepare(self, calls: Sequence[Call]) -> Callable[[], float]:
        _warm_up(calls)
        replay = _captured(calls)
        if replay is None:
            raise NotCapturable("a CUDA graph cannot hold these calls")
        start, end = _events()

        def replays(times: int) -> float:
            start.record()
            for _ in range(times):
                replay()
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end)) / 1e3

        replays(1)
        # The first launch is not hidden behind other work; with more launches its share is small.
        times = max(1, math.ceil(_SHORTEST_GRAPH_S / replays(1)))
        return lambda: replays(times) / (times * len(calls))


class NotCapturable(PagesimError):
    """A CUDA graph cannot hold these calls, which wait for the GPU or copy from memory that is not pinned."""


def time_kernel(
    calls: Sequence[Call], device: torch.device, budget_s: float = 0.2, bytes_a_call: int | None = None
) -> Timing:
    """Return the duration of one of the calls on a device.

    Args:
        calls: the same work on different inputs, see ``rotations``.
        device: device that they run on.
        budget_s: seconds to spend after warm-up.
        bytes_a_call: bytes that one call reads; if omitted, all calls together are assumed to exceed L2.

    Raises:
        PagesimError: there are no calls, or the budget is not above 0.
    """
    if device.type == "cpu":
        return CpuClock().time(calls, budget_s)
    if bytes_a_call is not None and bytes_a_call * len(calls) <= CACHES_OVER * l2_bytes():
        return EventClock().time(calls, budget_s)
    try:
        return GraphClock().time(calls, budget_s)
    except NotCapturable:
        return EventClock().time(calls, budget_s)


def rotations(bytes_a_call: int, device: torch.device, most: int = 64) -> int:
    """Return how many calls on different inputs exceed three times the L2; 1 on a CPU.

    Args:
        bytes_a_call: bytes that one call reads.
        device: device that they run on.
        most: upper bound of the result.
    """
    if device.type == "cpu":
        return 1
    return min(most, 1 + CACHES_OVER * l2_bytes() // max(1, bytes_a_call))


def l2_bytes() -> int:
    """Return the size of the current GPU's L2."""
    return int(torch.cuda.get_device_properties().L2_cache_size)


def _round(sample: Callable[[], float], budget_s: float) -> list[float]:
    samples: list[float] = []
    until = time.perf_counter() + budget_s
    while len(samples) < MIN_SAMPLES or (time.perf_counter() < until and len(samples) < MAX_SAMPLES):
        samples.append(sample())
    return samples


def _warm_up(calls: Sequence[Call]) -> None:
    # On a separate stream, as capturing requires; the first call may compile.
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in (calls[0], *calls):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()


def _captured(calls: Sequence[Call]) -> Call | None:
    """Return a function that replays a CUDA graph of these calls, or None if they cannot be captured."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            kept = [call() for call in calls]
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        if "captur" not in str(error):
            raise
        torch.cuda.synchronize()
        return None
    # Keep the results, so that later calls do not get their memory.
    return lambda kept=kept: graph.replay()  # type: ignore[misc]


def _events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    start, end = (
        torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        for _ in range(2)
    )
    return start, end

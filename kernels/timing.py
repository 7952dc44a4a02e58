"""Timing that can be trusted: what one call takes, cold, as a median with its spread and its noise floor.

| clock | for | what is timed |
|---|---|---|
| ``graph`` | kernels | a millisecond of replays of a CUDA graph that holds every call once |
| ``events`` | kernels with small inputs | each call between two CUDA events, behind a read of 12× L2 |
| ``wall`` | what the host takes part in | each call and a wait for the GPU, by the host's clock |
| ``cpu`` | the reference path | runs of calls, by the host's clock |

A kernel that is called again and again on the same inputs reads them from L2, and a server never does that.
So the caller passes several calls that do the same on different inputs; a graph goes through all of them, and
``rotations`` says how many are needed to hold more than three times the L2. Where inputs are too small for
that, L2 is flushed by reading another buffer; writing it, as is often done, leaves dirty lines whose
write-back is then timed too. There each call is a graph of its own, so that the time to launch it from Python
is hidden behind the flush; a call that no graph can hold is made as it is.

Every measurement is made twice, one after the other. By how much the two medians differ is its noise: a
difference between two kernels that is smaller means nothing.
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
"""Does the work once and leaves it under way; what it returns is dropped."""

CACHES_OVER = 3
"""Inputs are rotated over so many times the L2."""

FLUSH_OVER = 12
"""L2 is flushed with so many times its size: the GPU reads for 0.2 ms, while the host launches the call."""

MIN_SAMPLES, MAX_SAMPLES = 5, 1000
"""In each of the two rounds."""

_SHORTEST_S = 50e-6
"""A sample on the host's clock takes at least this long; shorter calls are timed several at once."""

_FLUSHED_CALLS = 4
"""Behind a flush a few inputs will do, and capturing a graph takes a tenth of a second."""

_SHORTEST_GRAPH_S = 1e-3
"""Likewise for replays of a graph."""


@dataclass(frozen=True, slots=True)
class Timing:
    """What one call takes, in seconds.

    Attributes:
        median_s: of both rounds together.
        p20_s: a fifth of the samples are faster.
        p80_s: a fifth are slower.
        noise: difference of the two rounds' medians, over the median.
        samples: of both rounds.
        clock: how it was timed: ``graph``, ``events``, ``wall`` or ``cpu``.
    """

    median_s: float
    p20_s: float
    p80_s: float
    noise: float
    samples: int
    clock: str


class Clock(ABC):
    """Times calls. A subclass says how one round of samples is taken."""

    name: ClassVar[str]

    def time(self, calls: Sequence[Call], budget_s: float = 0.2) -> Timing:
        """Return what one of the calls takes.

        Args:
            calls: the same work on different inputs, at least one.
            budget_s: seconds that the two rounds may take together, after warm-up; at least five samples are
                taken in each.

        Raises:
            PagesimError: there are no calls, or no time.
        """
        if not calls:
            raise PagesimError("calls is empty; there must be something to time")
        if not budget_s > 0:
            raise PagesimError(f"budget_s is {budget_s}; it must be above 0")
        return self.take(self.prepare(calls), budget_s)

    def take(self, sample: Callable[[], float], budget_s: float) -> Timing:
        """Return what a call takes, from a function that takes one sample."""
        rounds = [np.array(_round(sample, budget_s / 2)) for _ in range(2)]
        both = np.concatenate(rounds)
        p20, median, p80 = np.percentile(both, (20, 50, 80)).tolist()
        first, second = (float(np.median(samples)) for samples in rounds)
        return Timing(median, p20, p80, abs(first - second) / median, len(both), self.name)

    @abstractmethod
    def prepare(self, calls: Sequence[Call]) -> Callable[[], float]:
        """Warm up; return what takes one sample: a function that says how many seconds a call took."""


class CpuClock(Clock):
    """Times calls that have done their work when they return."""

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
    """Times calls together with a wait for all that they put under way on the GPU."""

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
    """Times each call between two CUDA events, with L2 flushed before.

    Args:
        flush: reads more than L2 holds; without, a buffer of 12 times its size is read.
    """

    name: ClassVar[str] = "events"

    def __init__(self, flush: Call | None = None) -> None:
        self._flush = flush

    def prepare(self, calls: Sequence[Call]) -> Callable[[], float]:
        # A reduction: it reads, and writes next to nothing.
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
    """Times replays of a CUDA graph of all the calls: no launch overhead, and inputs that L2 cannot hold.

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
        # The first launch is not hidden behind anything; with more of them it is a small part.
        times = max(1, math.ceil(_SHORTEST_GRAPH_S / replays(1)))
        return lambda: replays(times) / (times * len(calls))


class NotCapturable(PagesimError):
    """A CUDA graph cannot hold these calls: they wait for the GPU, or copy from memory that is not pinned."""


def time_kernel(
    calls: Sequence[Call], device: torch.device, budget_s: float = 0.2, bytes_a_call: int | None = None
) -> Timing:
    """Return what one of the calls takes on a device.

    Args:
        calls: the same work on different inputs, see ``rotations``.
        device: where they run.
        budget_s: seconds to spend after warm-up.
        bytes_a_call: what one call reads; without, the calls are taken to exceed L2 together.

    Raises:
        PagesimError: there are no calls, or no time.
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
    """Return how many calls on different inputs hold more than three times the L2; 1 on a CPU.

    Args:
        bytes_a_call: what one call reads.
        device: where it runs.
        most: return no more than this many.
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
    # On a stream of its own, as capture wants it; the first call may compile.
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in (calls[0], *calls):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()


def _captured(calls: Sequence[Call]) -> Call | None:
    """Return what replays a CUDA graph of these calls, or None if none can hold them."""
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
    # What they returned is kept: a later call would get that memory otherwise.
    return lambda kept=kept: graph.replay()  # type: ignore[misc]


def _events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    start, end = (
        torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        for _ in range(2)
    )
    return start, end

"""Timing: medians, spread and noise; which clock is taken; a GPU's clocks, on a GPU that is played."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pagesim.errors import PagesimError  # noqa: E402
from pagesim.kernels import timing  # noqa: E402
from pagesim.kernels.bench import session  # noqa: E402
from pagesim.kernels.timing import (  # noqa: E402
    CpuClock,
    EventClock,
    GraphClock,
    Timing,
    WallClock,
    rotations,
    time_kernel,
)

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
L2 = 60 << 20


class Played:
    """A GPU whose clock is a number: calls, launches and flushes move it on."""

    def __init__(self, *, capturable: bool = True) -> None:
        self.now = 0.0
        self.log: list[str] = []
        self.capturable = capturable
        self.capturing: list[float] | None = None

    def work(self, name: str, seconds: float):
        """Return a call that takes so many seconds of the GPU."""

        def call() -> None:
            if self.capturing is not None:
                if not self.capturable:
                    raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
                self.capturing.append(seconds)
            else:
                self.log.append(name)
                self.now += seconds

        return call


class PlayedEvent:
    gpu: Played

    def __init__(self, enable_timing: bool = False) -> None:
        self.at = math.nan

    def record(self) -> None:
        self.at = self.gpu.now

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: PlayedEvent) -> float:
        return (end.at - self.at) * 1e3


@pytest.fixture
def play(monkeypatch):
    """Return a function that puts a played GPU in the place of torch.cuda."""

    def start(**how) -> Played:
        gpu = Played(**how)

        class Graph:
            def __init__(self) -> None:
                self.seconds: list[float] = []

            def replay(self) -> None:
                gpu.log.append(f"replay of {len(self.seconds)}")
                gpu.now += sum(self.seconds)

        @contextmanager
        def capture(graph: Graph) -> Iterator[None]:
            gpu.capturing = graph.seconds
            try:
                yield
            finally:
                gpu.capturing = None

        class Stream:
            def wait_stream(self, other: object) -> None:
                pass

        @contextmanager
        def stream(chosen: Stream) -> Iterator[None]:
            yield

        facts = SimpleNamespace(L2_cache_size=L2)
        for name, value in {
            "Event": type("Event", (PlayedEvent,), {"gpu": gpu}),
            "CUDAGraph": Graph,
            "graph": capture,
            "Stream": Stream,
            "stream": stream,
            "current_stream": Stream,
            "synchronize": lambda: None,
            "get_device_properties": lambda: facts,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)
        return gpu

    return start


def test_a_timing_is_a_median_with_its_spread_and_its_noise():
    samples = iter([1.0, 1.0, 2.0, 9.0, 2.0, 2.0, 3.0, 3.0, 1.0, 3.0])
    clock = CpuClock()
    taken = clock.take(lambda: next(samples), budget_s=1e-9)
    # Medians of the rounds are 2 and 3, of all ten samples 2.
    assert taken == Timing(2.0, 1.0, 3.0, noise=0.5, samples=10, clock="cpu")


def test_calls_on_a_cpu_take_turns_and_are_timed_in_runs():
    made: list[int] = []
    calls = [lambda: made.append(0), lambda: made.append(1)]
    taken = CpuClock().time(calls, budget_s=0.01)
    assert made[:8] == [0, 1] * 4
    assert taken.clock == "cpu"
    assert 0 < taken.p20_s <= taken.median_s <= taken.p80_s < timing._SHORTEST_S
    assert len(made) > taken.samples


@pytest.mark.parametrize(
    ("calls", "budget", "said"), [([], 1, "calls is empty"), ([int], 0, "budget_s is 0")]
)
def test_there_must_be_something_to_time_and_time_to_do_it(calls, budget, said):
    with pytest.raises(PagesimError, match=said):
        CpuClock().time(calls, budget)


def test_a_graph_holds_every_call_once_and_replays_until_a_sample_is_long(play):
    gpu = play()
    calls = [gpu.work("a", 10e-6), gpu.work("b", 30e-6)]
    taken = GraphClock().time(calls, budget_s=1e-9)
    assert taken.clock == "graph"
    assert taken.median_s == pytest.approx(20e-6)
    assert gpu.log[:3] == ["a", "a", "b"], "warm-up; the first may compile"
    assert set(gpu.log[3:]) == {"replay of 2"}
    assert len(gpu.log[5:]) == taken.samples * 25, "25 replays of 40 µs are a millisecond"


def test_small_inputs_are_timed_one_by_one_behind_a_flush(play):
    gpu = play()
    calls = [gpu.work("a", 10e-6), gpu.work("b", 10e-6)]
    taken = EventClock(flush=gpu.work("flush", 50e-6)).time(calls, budget_s=1e-9)
    assert taken.clock == "events"
    assert taken.median_s == pytest.approx(10e-6)
    assert gpu.log[-4:] == ["flush", "replay of 1"] * 2


def test_what_no_graph_can_hold_is_timed_by_events(play, monkeypatch):
    gpu = play(capturable=False)
    # A buffer on a device that is only played.
    buffer = SimpleNamespace(normal_=lambda: SimpleNamespace(amax=gpu.work("flush", 50e-6)))
    monkeypatch.setattr(torch, "empty", lambda *_, **__: buffer)
    taken = time_kernel([gpu.work("a", 10e-6)], CUDA, 1e-9)
    assert taken.clock == "events"
    assert taken.median_s == pytest.approx(10e-6)
    assert gpu.log[-2:] == ["flush", "a"]


def test_the_clock_follows_from_the_device_and_the_size_of_the_inputs(play, monkeypatch):
    gpu = play()
    chosen = []
    for kind in (GraphClock, EventClock):
        monkeypatch.setattr(kind, "time", lambda self, *_: chosen.append(self.name))
    call = gpu.work("a", 1e-6)
    time_kernel([call], CUDA, 1, bytes_a_call=3 * L2)
    time_kernel([call] * 2, CUDA, 1, bytes_a_call=3 * L2)
    time_kernel([call], CUDA, 1)
    assert chosen == ["events", "graph", "graph"]


def test_an_error_that_has_nothing_to_do_with_capturing_is_passed_on(play):
    play()

    def broken() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        time_kernel([broken], CUDA, 1)


def test_the_hosts_clock_waits_for_the_gpu(play, monkeypatch):
    gpu = play()
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: time.sleep(1e-3))
    taken = WallClock().time([gpu.work("a", 0)], budget_s=0.01)
    assert taken.clock == "wall"
    assert taken.median_s >= 1e-3


def test_inputs_are_rotated_until_l2_cannot_hold_them(play):
    play()
    assert rotations(1 << 30, CPU) == 1
    assert rotations(1 << 30, CUDA) == 1
    assert rotations(L2, CUDA) == 4
    for size in (L2 - 1, 10 << 20, 4 << 20):
        assert size * rotations(size, CUDA) > 3 * L2 >= size * (rotations(size, CUDA) - 1)
    assert rotations(8, CUDA) == 64


def test_a_copy_reads_and_writes(monkeypatch):
    size = 1 << 20
    monkeypatch.setattr(session, "COPY_BYTES", {"cpu": size})
    began = time.perf_counter()
    rate = session.Session("cpu", 0.01).copy_gb_per_s
    assert rate > 2 * size / (time.perf_counter() - began) / 1e9


def test_a_product_of_matrices_is_two_operations_a_pair(monkeypatch):
    monkeypatch.setattr(session, "MATRIX", {"cpu": 64})
    began = time.perf_counter()
    rate = session.Session("cpu", 0.01).peak_tflop_per_s
    assert rate > 2 * 64**3 / (time.perf_counter() - began) / 1e12

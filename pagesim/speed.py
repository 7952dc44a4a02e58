"""How fast the simulator is, in a unit that holds on any machine: bare SimPy timeouts.

A bare timeout is one event of an empty simulation. Machines differ in how many they make a second, and one
machine differs from hour to hour; what a replayed request costs in them hardly does.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import simpy

from pagesim.errors import PagesimError, brief

RATES = {"light": 0.5, "saturated": 1.95, "overload": 4.0}
"""Requests a second of the loads, for OPT-13B in 983 blocks and ``COST``: memory is mostly free; just enough;
too small, so that every request is preempted about once."""

COST, NUM_BLOCKS, MODEL = "affine:0.024,1e-4,8.2e-7", 983, "opt-13b"

SIZES = (10_000, 100_000, 1_000_000)

_TIMEOUTS = 300_000

_SLICE_S, _LOOK_EVERY = 1.0, 1000
"""How long the machine is taken to stay as fast as it is, and after how many requests that is looked at."""

_ENOUGH_S, _MOST_REPLAYS = 2.0, 6
"""A replay that is shorter is repeated: what else runs on a machine comes and goes in tenths of a second."""

_TOLD_BY = {
    **{"policy": str, "load": str, "requests": int, "trace": str, "prefix_caching": bool},
    **{"model": str, "block_size": int},
}
"""What tells two rows of the same point."""


@dataclass(frozen=True, slots=True)
class Point:
    """One replay that is timed.

    Attributes:
        policy: a name of `POLICIES`.
        load: a key of ``RATES``, or ``recorded`` for the trace's own arrivals.
        requests: how many; the trace is repeated until there are enough.
        trace: a bundled workload's name or a path.
        prefix_caching: whether vllm-v1 caches prefixes.
        num_blocks: of the cache.
        model: a model's name.
        gpu: a GPU's name; only a cost model that asks for one looks.
        cost: of the iterations, as ``pagesim run --cost``.
        block_size: tokens a block; 0 for the policy's own.
        max_num_batched_tokens: 0 for the policy's own.
    """

    policy: str
    load: str
    requests: int
    trace: str = "sharegpt"
    prefix_caching: bool = False
    num_blocks: int = NUM_BLOCKS
    model: str = MODEL
    gpu: str = ""
    cost: str = COST
    block_size: int = 0
    max_num_batched_tokens: int = 0

    def __post_init__(self) -> None:
        if self.load not in (*RATES, "recorded"):
            raise PagesimError(f"load is {self.load!r}; it must be one of {', '.join(RATES)}, recorded")
        if self.requests < 1:
            raise PagesimError(f"requests is {self.requests}; at least 1 is needed")


Row = dict[str, Any]
"""A point's fields, and what it took: see `measure`."""


def bare_timeout_s(timeouts: int = _TIMEOUTS) -> float:
    """Return the CPU seconds of one timeout in a simulation of nothing else."""
    environment = simpy.Environment()

    def wait() -> Generator[simpy.Event]:
        for _ in range(timeouts):
            yield environment.timeout(1)

    environment.process(wait())
    started = time.process_time()
    environment.run()
    return (time.process_time() - started) / timeouts


class _Meter:
    """Counts CPU time in bare timeouts, measured again every second: no machine stays as fast as it is."""

    def __init__(self) -> None:
        self.cpu_s = self.timeouts = 0.0
        self._bare = bare_timeout_s()
        self._next = 0
        self._since = time.process_time()

    def watch(self, over: int) -> None:
        """So many requests are over."""
        if over >= self._next:
            self._next = over + _LOOK_EVERY
            if time.process_time() - self._since > _SLICE_S:
                self.stop()

    def stop(self) -> None:
        """Count what passed since the last stop, in timeouts of now and then."""
        passed = time.process_time() - self._since
        bare = bare_timeout_s(_TIMEOUTS // 3)
        self.cpu_s += passed
        self.timeouts += passed / ((self._bare + bare) / 2)
        self._bare = bare
        self._next = 0  # another replay may begin
        self._since = time.process_time()


def measure(point: Point) -> Row:
    """Replay a point in this process and return its row.

    Columns beside the point's own: ``cpu_s`` of the replay with its ledger and every metric, the making of
    the trace left out, and the mean of several if it is short; ``bare_timeout_us``, mean over that time;
    ``timeouts_per_request`` and ``timeouts_per_decision``; ``decisions_per_request``; requests, tokens and
    iterations a CPU second; ``preemptions_per_request``; ``peak_rss_mb`` of the process.
    """
    from pagesim.api import run
    from pagesim.scenario import System
    from pagesim.workloads import make_trace

    if point.load == "recorded":
        trace = make_trace(point.trace, num_requests=point.requests)
    else:
        trace = make_trace(
            point.trace, num_requests=point.requests, arrivals="poisson", rate=RATES[point.load]
        )
    names = ("model", "gpu", "cost", "num_blocks", "block_size", "max_num_batched_tokens", "prefix_caching")
    options = {name: getattr(point, name) for name in names}
    system = System(policy=point.policy, **{name: value for name, value in options.items() if value})
    run(system, trace.take(np.arange(min(100, point.requests))), steps="none")  # what is loaded at first use
    meter = _Meter()
    replays = 0
    while not replays or (meter.cpu_s < _ENOUGH_S and replays < _MOST_REPLAYS):
        summary = run(system, trace, steps="none", watch=meter.watch).summary
        meter.stop()
        replays += 1
    cpu_s, bare = meter.cpu_s / replays, meter.cpu_s / meter.timeouts
    decisions, tokens = summary["sim"]["decisions"], int((trace.output_tokens * trace.n).sum())
    return {
        **asdict(point),
        "cpu_s": cpu_s,
        "bare_timeout_us": bare * 1e6,
        "timeouts_per_request": cpu_s / bare / point.requests,
        "timeouts_per_decision": cpu_s / bare / decisions if decisions else None,
        "decisions_per_request": decisions / point.requests,
        "requests_per_s": point.requests / cpu_s,
        "tokens_per_s": tokens / cpu_s,
        "iterations_per_s": summary["iterations"] / cpu_s,
        "preemptions_per_request": sum(summary["preemptions"].values()) / point.requests,
        "peak_rss_mb": summary["sim"]["peak_rss_mb"],
    }


def measure_apart(point: Point) -> Row:
    """Return the row of a point that is replayed in a process of its own, so that its memory is its own.

    Raises:
        PagesimError: it failed there.
    """
    command = [sys.executable, "-m", "pagesim.speed", json.dumps(asdict(point))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["it was killed"]
        raise PagesimError(f"{point.policy}, {point.load}, {point.requests} requests: {last[0]}")
    row: Row = json.loads(done.stdout)
    return row


def measure_all(points: Iterable[Point], watch: Callable[[Point], None] | None = None) -> list[Row]:
    """Return the rows of points, measured one after another."""
    rows = []
    for point in points:
        if watch is not None:
            watch(point)
        rows.append(measure_apart(point))
    return rows


def base_row(row: Any) -> Row:
    """Return a row that was read from a file as one to compare with.

    Raises:
        ValueError: it is none.
    """
    if isinstance(row, dict):  # rows had neither at first
        row = {"model": MODEL, "block_size": 0, **row}
    if not isinstance(row, dict) or any(type(row.get(name)) is not kind for name, kind in _TOLD_BY.items()):
        raise ValueError("is no row")
    cost = row["timeouts_per_request"]
    if type(cost) not in (int, float) or not 0 < cost < 1e12:
        raise ValueError(f"timeouts_per_request is {brief(cost)}")
    return {**row, "timeouts_per_request": float(cost)}


def compared(rows: Sequence[Row], base: Sequence[Row]) -> list[Row]:
    """Return rows with ``against``: their cost a request over that in the base; None where it has no such."""
    names = tuple(_TOLD_BY)
    known = {tuple(row[name] for name in names): row["timeouts_per_request"] for row in base}
    return [
        {**row, "against": row["timeouts_per_request"] / known[key] if key in known else None}
        for row in rows
        for key in [tuple(row[name] for name in names)]
    ]


def _main(argument: str) -> None:
    """Measure one point, in JSON, and print its row: see `measure_apart`."""
    try:
        row = measure(Point(**json.loads(argument)))
    except PagesimError as error:
        sys.exit(str(error))
    json.dump(row, sys.stdout)


if __name__ == "__main__":
    _main(sys.argv[1])

"""Reads the statistics that AIPerf exports as JSON; GenAI-Perf's files have the same layout.

Source: aiperf 0.13.0, docs/reference/json-export-schema.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pagesim.experiments.recorded.bench_server import server_of
from pagesim.experiments.recorded.layout import Amount, Count, FileLayout, Requests, at, parsed, table
from pagesim.experiments.recorded.recording import Ints, RecordedRun
from pagesim.experiments.recorded.summaries import BenchLoad, scaled, statistics

METRICS = {
    "time_to_first_token": "ttft",
    "inter_token_latency": "tpot",
    "request_latency": "e2e",
    "benchmark_duration": "duration",
}
"""Metrics by AIPerf's names for them; its mean gap of a request is what others call TPOT."""

UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3}
"""Seconds per unit; 1 for any other unit."""


class _Lengths(FileLayout):
    avg: Count
    std: Amount = 0.0
    min: Amount = 1.0
    max: Amount = 1e7

    def drawn(self, draw: np.random.Generator, size: int) -> Ints:
        """Draw lengths from a normal distribution with this mean and deviation, clipped to the bounds."""
        return scaled(np.clip(draw.normal(self.avg, self.std, size), self.min, self.max), self.avg)


class _Export(BenchLoad):
    requests: Requests = at("request_count.avg")
    latency: Amount = at("request_latency.avg")
    prompt: _Lengths = at("input_sequence_length")
    output: _Lengths = at("output_sequence_length")
    throughput: Amount | None = at("request_throughput.avg", default=None)


def fits(data: object) -> bool:
    """Return whether a file's data looks like such statistics."""
    return isinstance(table(data).get("request_latency"), Mapping)


def read(name: str, data: Mapping[str, Any]) -> tuple[RecordedRun, ...]:
    """Return the run, with lengths drawn as AIPerf draws them."""
    found = parsed(_Export, name, data)
    known = {
        metric: statistics(f"{name}: {their}", of, UNITS.get(str(of.get("unit")), 1.0))
        for their, metric in METRICS.items()
        if (of := table(data.get(their)))
    }
    clients, rate, said = found.clients, found.a_second(name), ""
    if clients is None and rate is None and found.throughput is not None:
        clients = max(1.0, round(found.throughput * known["e2e"]["mean"]))
        said = f"; its load is not said, by Little's law {clients:.0f} requests at a time"
    draw, size = np.random.default_rng(0), int(found.requests)
    note = f"lengths of {found.prompt.avg:,.4g} and {found.output.avg:,.4g} tokens in the mean"
    run = RecordedRun.summarized(
        name,
        known,
        found.prompt.drawn(draw, size),
        found.output.drawn(draw, size),
        clients=clients,
        rate=rate,
        server=server_of(name, data),
        notes=(f"{name}: has no single requests: {note} are drawn, normally{said}",),
    )
    return (run,)

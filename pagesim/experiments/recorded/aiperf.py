"""Reads the statistics of a run that AIPerf exports as JSON or CSV; GenAI-Perf's have the same layout.

Source: aiperf 0.13.0, docs/reference/json-export-schema.md; its ``input_config`` in both layouts that it had.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from pagesim.experiments.recorded.layout import Amount, Count, Layout, Requests, at, parsed, table
from pagesim.experiments.recorded.recording import Ints, RecordedRun
from pagesim.experiments.recorded.summarized import scaled, statistics, summarized

METRICS = {
    "time_to_first_token": "ttft",
    "inter_token_latency": "tpot",
    "request_latency": "e2e",
    "benchmark_duration": "duration",
}
"""Metrics, by how AIPerf calls them; its mean gap of a request is what others call TPOT."""

UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3}
"""Seconds of a unit; of others it is 1."""


class Load(Layout):
    """With which load of which model a run came about."""

    clients: Count | None = at(
        "input_config.phases.-1.concurrency", "input_config.loadgen.concurrency", default=None
    )
    rate: Amount | None = at("input_config.phases.-1.rate", "input_config.loadgen.request_rate", default=None)
    model: str | None = at(
        "input_config.models.items.0.name", "input_config.endpoint.model_names.0", default=None
    )

    @property
    def server(self) -> dict[str, Any]:
        """Options of a system."""
        return {} if self.model is None else {"model": self.model}


class _Lengths(Layout):
    avg: Count
    std: Amount = 0.0
    min: Amount = 1.0
    max: Amount = 1e7

    def drawn(self, size: int) -> Ints:
        """Return lengths of a normal distribution with this mean and deviation, within the bounds."""
        lengths = np.random.default_rng(0).normal(self.avg, self.std, size)
        return scaled(np.clip(lengths, self.min, self.max), self.avg)


class _Export(Layout):
    requests: Requests = at("request_count.avg")
    latency: Amount = at("request_latency.avg")
    prompt: _Lengths = at("input_sequence_length")
    output: _Lengths = at("output_sequence_length")
    throughput: Amount | None = at("request_throughput.avg", default=None)


def fits(data: object) -> bool:
    """Return whether a file's data may be such statistics."""
    return isinstance(table(data).get("request_latency"), Mapping)


def of_csv(text: str) -> dict[str, Any]:
    """Return statistics as the JSON has them, of a CSV of two tables: statistics a row, and single values."""
    found: dict[str, Any] = {}
    names: list[str] = []
    for first, *cells in filter(None, csv.reader(text.splitlines())):
        if first == "Metric":
            names = ["avg" if name == "Value" else name for name in cells]
            continue
        metric, _, unit = first.partition(" (")
        of: dict[str, Any] = {"unit": unit.rstrip(")")}
        found[metric.lower().replace(" ", "_")] = of
        for name, cell in zip(names, cells, strict=False):
            with suppress(ValueError):
                of[name] = float(cell.replace(",", ""))
    return found


def read(name: str, data: Mapping[str, Any]) -> tuple[RecordedRun, ...]:
    """Return the run, with lengths drawn from a normal distribution, as AIPerf draws them."""
    found, load = parsed(_Export, name, data), parsed(Load, name, data)
    known = {
        metric: statistics(f"{name}: {their}", of, UNITS.get(str(of.get("unit")), 1.0))
        for their, metric in METRICS.items()
        if (of := table(data.get(their)))
    }
    clients, load_note = load.clients, ""
    if clients is None and load.rate is None and found.throughput is not None:
        clients = max(1.0, round(found.throughput * known["e2e"]["mean"]))
        load_note = f"; its load is not said, by Little's law {clients:.0f} requests at a time"
    size = int(found.requests)
    means = f"{found.prompt.avg:,.4g} and {found.output.avg:,.4g}"
    note = f"lengths of {means} tokens in the mean are drawn, normally"
    run = summarized(
        name,
        known,
        found.prompt.drawn(size),
        found.output.drawn(size),
        clients=clients,
        rate=load.rate,
        server=load.server,
        notes=(f"{name}: has no single requests: {note}{load_note}",),
    )
    return (run,)

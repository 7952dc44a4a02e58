"""Reads AIPerf's ``profile_export.jsonl``, one record per request; the export next to it holds the load.

Source: aiperf 0.13.0, docs/tutorials/working-with-profile-exports.md, common/models/record_models.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pagesim.experiments.recorded.aiperf import UNITS
from pagesim.experiments.recorded.bench_server import server_of
from pagesim.experiments.recorded.layout import (
    Amount,
    FileLayout,
    Nanoseconds,
    Tokens,
    at,
    json_of,
    parsed,
    table,
    text_of,
)
from pagesim.experiments.recorded.recording import RecordedRun
from pagesim.experiments.recorded.summaries import BenchLoad

EXPORT = "profile_export_aiperf.json"


class _Record(FileLayout):
    start: Nanoseconds = at("metadata.request_start_ns")
    ttft: Amount = at("metrics.time_to_first_token.value")
    ttft_unit: str = at("metrics.time_to_first_token.unit")
    latency: Amount = at("metrics.request_latency.value")
    latency_unit: str = at("metrics.request_latency.unit")
    prompt: Tokens = at("metrics.input_sequence_length.value")
    output: Tokens = at("metrics.output_sequence_length.value")
    gaps: None = None

    @property
    def first(self) -> float:
        return self.start + self.ttft * UNITS.get(self.ttft_unit, 1.0)

    @property
    def last(self) -> float:
        return self.start + self.latency * UNITS.get(self.latency_unit, 1.0)


def fits(data: object) -> bool:
    """Return whether a file's data looks like such records."""
    return isinstance(data, list) and bool(data) and {"metadata", "metrics"} <= table(data[0]).keys()


def read(name: str, rows: Sequence[Any]) -> tuple[RecordedRun, ...]:
    """Return the run, without its warm-up requests."""
    beside = Path(name).with_name(EXPORT)
    export = table(json_of(beside, text_of(beside)) if beside.is_file() else None)
    load = parsed(BenchLoad, str(beside), export)
    phases = [table(table(row).get("metadata")).get("benchmark_phase", "profiling") for row in rows]
    of_run = [number for number, phase in enumerate(phases) if phase == "profiling"]
    good = [number for number in of_run if table(rows[number]).get("error") is None]
    hint = "run aiperf profile with --streaming"
    run = RecordedRun.of(
        name,
        [parsed(_Record, name, rows[number], hint, row=number) for number in good],
        failed=len(of_run) - len(good),
        max_concurrency=None if load.a_second(str(beside)) else load.clients,
        server=server_of(str(beside), export),
    )
    return (run,)

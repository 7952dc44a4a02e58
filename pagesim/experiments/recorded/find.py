"""Finds the reader for a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pagesim.errors import PagesimError, brief
from pagesim.experiments.recorded import (
    aiperf,
    aiperf_records,
    bench_summary,
    closed_loop_table,
    guidellm,
    inference_perf,
    llmservingsim,
    server_files,
    vllm_bench,
)
from pagesim.experiments.recorded.catalogue import known, of_another_gpu
from pagesim.experiments.recorded.layout import json_of, text_of
from pagesim.experiments.recorded.recording import RecordedRun
from pagesim.experiments.recorded.server_files import ServerFacts
from pagesim.models import model
from pagesim.scheduling.vllm_releases import RELEASES

FORMATS = (
    "the JSON of vllm bench serve --save-result, SGLang's bench, AIPerf's profile_export, "
    "GuideLLM's benchmarks.json, inference-perf's per_request_lifecycle_metrics.json, LLMServingSim's "
    "requests.jsonl, or a table of closed-loop runs"
)

OF_LINES = (vllm_bench, bench_summary)
"""Readers of formats to which clients append one run per line."""

READERS = (*OF_LINES, guidellm, inference_perf, llmservingsim, aiperf, aiperf_records)
"""Each has ``fits(data)``, whether data is of its format, and ``read(name, data)``, which returns its runs.
``read`` raises `PagesimError` if a field is missing or wrong, times are contradictory, or too many requests
failed. The first reader that fits reads the file."""

SHARING_OUT = "0.33.0"
"""The release for which the distribution of requests over data-parallel ranks is known."""


def read(file: Path) -> tuple[RecordedRun, ...]:
    """Return the runs of a file, with the catalogue's names of the server's model, GPU and release.

    Raises:
        PagesimError: the file's format is unknown, or its contents are invalid.
    """
    return tuple(_known(run) for run in _read(file))


def _known(run: RecordedRun) -> RecordedRun:
    """Return a run with the server's names replaced by the catalogue's."""
    server, said = known(run.server), run.server.get("vllm_version")
    own = server.get("vllm_version")
    if own is not None:
        # Features that no log of so old a release shows are simulated with a release for which one does.
        if server.get("async_scheduling") and not RELEASES[own].async_scheduling:
            own = next(name for name, each in RELEASES.items() if each.async_scheduling)
        if server.get("data_parallel_size", 1) > 1:
            own = SHARING_OUT
        server["vllm_version"] = own
    if "model" in server and model(server["model"]).weights_in_words != "bf16":
        # A quantized checkpoint itself determines how it is quantized.
        server = {name: value for name, value in server.items() if (name, value) != ("weight_dtype", "fp8")}
    notes = run.notes
    if own is not None and own != said:
        notes += (f"recorded of vLLM {brief(said, 40)}, which is simulated as {own}",)
    if "gpu" in server and (other := of_another_gpu(str(run.server["gpu"]), server["gpu"])):
        notes += (other,)
    return replace(run, server=server, notes=notes)


def read_all(files: Sequence[Path]) -> tuple[RecordedRun, ...]:
    """Return the runs of several files; options in server logs and metrics among these apply to all runs.

    Raises:
        PagesimError: a file's format is unknown, or none of the files holds a run.
    """
    runs: list[RecordedRun] = []
    options: dict[str, Any] = {}
    of_server: dict[str, Any] = {}
    for file in files:
        if (facts := _about_server(file)) is None:
            runs += read(file)
            continue
        options |= facts.options
        counted = {"preemptions": facts.preemptions, "series": facts.series}
        of_server |= {name: value for name, value in counted.items() if value is not None}
    if not runs:
        raise PagesimError(f"{files[0]}: says what the server is, and holds no request; give a run, too")
    options = known(options)
    more = of_server if len(runs) == 1 else {}
    return tuple(replace(run, server={**options, **run.server}, **more) for run in runs)


def _about_server(file: Path) -> ServerFacts | None:
    """Return what a server's log or metrics say; None if the file contains requests."""
    text = text_of(file)
    if text.lstrip()[:1] in ("{", "["):
        # Only AIPerf's samples of a server have a table of metrics with series.
        samples = server_files.sampled(json_of(file, text)) if '"series"' in text else []
    else:
        samples = server_files.samples_of(text)
    if samples:
        return server_files.metrics(str(file), samples)
    return server_files.log(str(file), text)


def _read(file: Path) -> tuple[RecordedRun, ...]:
    name, text = str(file), text_of(file)
    if not text.strip():
        raise PagesimError(f"{file}: is empty, and so is no log that pagesim reads: {FORMATS}")
    if closed_loop_table.fits(text):
        return closed_loop_table.read(file)
    data = json_of(file, text)
    for reader in READERS:
        if reader.fits(data):
            runs: tuple[RecordedRun, ...] = reader.read(name, data)
            return runs
    for reader in OF_LINES:
        if isinstance(data, list) and data and all(map(reader.fits, data)):
            lines = enumerate(data, 1)
            return tuple(run for line, each in lines for run in reader.read(f"{name}#{line}", each))
    raise PagesimError(f"{file}: is no log that pagesim reads: {FORMATS}")

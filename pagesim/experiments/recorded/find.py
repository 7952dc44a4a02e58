"""Finding: which reader a file is for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

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
    sglang_bench,
    vllm_bench,
)
from pagesim.experiments.recorded.catalogue import known
from pagesim.experiments.recorded.layout import json_of, text_of
from pagesim.experiments.recorded.recording import RecordedRun
from pagesim.experiments.recorded.server_files import ServerFacts

FORMATS = (
    "the JSON of vllm bench serve --save-result, SGLang's bench, AIPerf's profile_export, "
    "GuideLLM's benchmarks.json, inference-perf's per_request_lifecycle_metrics.json, LLMServingSim's "
    "requests.jsonl, or a table of closed-loop runs"
)

OF_LINES = (sglang_bench, vllm_bench, bench_summary)
"""Readers of what clients append to a file, a run a line."""

READERS = (*OF_LINES, guidellm, inference_perf, llmservingsim, aiperf, aiperf_records)
"""Each has ``fits(data)`` and ``read(name, data)``: whether what a file of that name holds is of its format,
and its runs. ``read`` raises `PagesimError` where a field is missing or wrong, times contradict one another,
or too many requests failed. The first that fits reads a file."""


def read(file: Path) -> tuple[RecordedRun, ...]:
    """Return the runs of a file, with the server's model, GPU and release as the catalogue has them.

    Raises:
        PagesimError: the file is of no format that can be read, or what it holds is wrong.
    """
    return tuple(_known(run) for run in _read(file))


def _known(run: RecordedRun) -> RecordedRun:
    """Return a run with the server's own words as the catalogue has them."""
    server, said = known(run.server), run.server.get("vllm_version")
    own = server.get("vllm_version")
    notes = run.notes
    if own is not None and own != said:
        notes += (f"recorded of vLLM {brief(said, 40)}, which is simulated as {own}",)
    return replace(run, server=server, notes=notes)


def read_all(files: Sequence[Path]) -> tuple[RecordedRun, ...]:
    """Return the runs of several files; server's logs and dumps of metrics among them are about all runs.

    Raises:
        PagesimError: a file is of no format that can be read, or there is no run among them.
    """
    logs, server = split(files)
    runs = [run for file in logs for run in read(file)]
    if server.preemptions is not None and len(runs) == 1:
        runs = [replace(run, preemptions=server.preemptions) for run in runs]
    return tuple(replace(run, server={**server.options, **run.server}) for run in runs)


def split(files: Sequence[Path]) -> tuple[list[Path], ServerFacts]:
    """Return the files of requests, and what server's logs and dumps of metrics among the others say.

    Raises:
        PagesimError: a file cannot be read, or there is none of requests.
    """
    logs: list[Path] = []
    facts = ServerFacts({})
    for file in files:
        about = about_server(file)
        if about is None:
            logs.append(file)
        else:
            preempted = facts.preemptions if about.preemptions is None else about.preemptions
            facts = ServerFacts({**facts.options, **about.options}, preempted)
    if not logs:
        raise PagesimError(f"{files[0]}: says what the server is, and holds no request; give a run, too")
    return logs, facts._replace(options=known(facts.options))


def about_server(file: Path) -> ServerFacts | None:
    """Return what a server's log, or a dump of its metrics, says; None if the file is neither."""
    text = text_of(file)
    if text.lstrip()[:1] in ("{", "["):
        return None
    if server_files.is_metrics(text):
        return server_files.metrics(str(file), text)
    return server_files.log(str(file), text) if server_files.is_log(text) else None


def _read(file: Path) -> tuple[RecordedRun, ...]:
    name, text = str(file), text_of(file)
    if not text.strip():
        raise PagesimError(f"{file}: is empty, and so is no log that pagesim reads: {FORMATS}")
    if closed_loop_table.fits(text):
        return closed_loop_table.read(file)
    if text.startswith("Metric,"):
        beside = file.with_suffix(".json")
        return _read(beside) if beside.is_file() else aiperf.read(name, aiperf.of_csv(text))
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

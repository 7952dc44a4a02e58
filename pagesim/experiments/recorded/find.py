"""Finding: which reader a file is for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pagesim.errors import PagesimError, brief
from pagesim.experiments.recorded import (
    closed_loop_table,
    fields,
    guidellm,
    inference_perf,
    llmservingsim,
    server_files,
    sglang_bench,
    vllm_bench,
)
from pagesim.experiments.recorded.catalogue import known, of_another_gpu
from pagesim.experiments.recorded.recording import RecordedRun
from pagesim.experiments.recorded.server_files import ServerFacts
from pagesim.models import model
from pagesim.scheduling.vllm_releases import RELEASES

FORMATS = (
    "the JSON of vllm bench serve --save-result --save-detailed, SGLang's bench --output-details, "
    "GuideLLM's benchmarks.json, inference-perf's per_request_lifecycle_metrics.json, LLMServingSim's "
    "requests.jsonl, or a table of closed-loop runs"
)

SHARING_OUT = "0.33.0"
"""The release of which it is known how it shares requests out among data-parallel ranks."""


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
    if own is not None:
        # What no log of so old a release shows is simulated as a release of which one does.
        if server.get("async_scheduling") and not RELEASES[own].async_scheduling:
            own = next(name for name, each in RELEASES.items() if each.async_scheduling)
        if server.get("data_parallel_size", 1) > 1:
            own = SHARING_OUT
        server["vllm_version"] = own
    if "model" in server and model(server["model"]).weights_in_words != "bf16":
        # Of a checkpoint that is quantized: it says by itself how.
        server = {name: value for name, value in server.items() if (name, value) != ("weight_dtype", "fp8")}
    notes = run.notes
    if own is not None and own != said:
        notes += (f"recorded of vLLM {brief(said, 40)}, which is simulated as {own}",)
    if "gpu" in server and (other := of_another_gpu(str(run.server["gpu"]), server["gpu"])):
        notes += (other,)
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
    text = fields.text_of(file)
    if text.lstrip()[:1] in ("{", "["):
        return None
    if server_files.is_metrics(text):
        return server_files.metrics(str(file), text)
    return server_files.log(str(file), text) if server_files.is_log(text) else None


def _read(file: Path) -> tuple[RecordedRun, ...]:
    name = str(file)
    text = fields.text_of(file)
    if not text.strip():
        raise PagesimError(f"{file}: is empty, and so is no log that pagesim reads: {FORMATS}")
    if closed_loop_table.fits(text):
        return closed_loop_table.read(file)
    data = fields.json_of(file)
    if guidellm.fits(data):
        return guidellm.read(name, data)
    if sglang_bench.fits(data):
        return (sglang_bench.read(name, data),)
    if vllm_bench.fits(data):
        return (vllm_bench.read(name, data),)
    if inference_perf.fits(data):
        return (inference_perf.read(name, data),)
    if isinstance(data, list) and llmservingsim.fits(data):
        return (llmservingsim.read(file, data),)
    for each_line in (sglang_bench, vllm_bench):  # both clients append a run to a file, a line each
        if isinstance(data, list) and data and all(map(each_line.fits, data)):
            return tuple(each_line.read(f"{name}#{line}", each) for line, each in enumerate(data, 1))
    raise PagesimError(f"{file}: is no log that pagesim reads: {FORMATS}")

"""Reads LLMServingSim's ``requests.jsonl``, which an engine itself wrote about its requests.

``meta.json`` next to it has the engine's settings. It also names the file of the prompts with their tokens,
from which prefix hits follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import PlainValidator

from pagesim.errors import PagesimError, TraceError
from pagesim.experiments.recorded.layout import (
    FileLayout,
    Instant,
    Tokens,
    at,
    csv_of,
    json_of,
    number,
    parsed,
    table,
    text_of,
)
from pagesim.experiments.recorded.recording import RecordedRun, Series
from pagesim.workloads import load

_Cell = Annotated[float, PlainValidator(number(0, 1e9, cell=True))]


class _Request(FileLayout):
    start: Instant = at("queued_ts")
    first: Instant = at("first_token_ts")
    last: Instant = at("last_token_ts")
    prompt: Tokens = at("input_toks")
    output: Tokens = at("output_toks")
    gaps: None = None


class _Instant(FileLayout):
    t: _Cell
    running: _Cell
    waiting: _Cell
    kv_cache_pct: _Cell


class _Meta(FileLayout):
    frontend: str = "0"  # the engine's own times do not include a front end
    model: Any = None
    gpu: Any = at("hardware.device_name", default=None)
    vllm_version: Any = None
    tensor_parallel_size: Any = at("engine_kwargs.tensor_parallel_size", default=None)
    data_parallel_size: Any = at("engine_kwargs.data_parallel_size", default=None)
    enable_expert_parallel: Any = at("engine_kwargs.enable_expert_parallel", default=None)
    max_model_len: Any = at("engine_kwargs.max_model_len", default=None)
    max_num_seqs: Any = at(
        "resolved_config.scheduler_config.max_num_seqs", "engine_kwargs.max_num_seqs", default=None
    )
    max_num_batched_tokens: Any = at(
        "resolved_config.scheduler_config.max_num_batched_tokens",
        "engine_kwargs.max_num_batched_tokens",
        default=None,
    )
    async_scheduling: Any = at("resolved_config.scheduler_config.async_scheduling", default=None)
    enable_chunked_prefill: Any = at("resolved_config.scheduler_config.enable_chunked_prefill", default=None)
    num_blocks: Any = at("kv_cache.num_gpu_blocks", default=None)
    block_size: Any = at("kv_cache.block_size", default=None)
    enable_prefix_caching: Any = at("kv_cache.enable_prefix_caching", default=None)


def fits(data: object) -> bool:
    """Return whether a file's data looks like such requests."""
    return isinstance(data, list) and bool(data) and "first_token_ts" in table(data[0])


def read(name: str, rows: Sequence[Any]) -> tuple[RecordedRun, ...]:
    """Return the run, with the server's settings from ``meta.json`` and its queue from ``timeseries.csv``."""
    file = Path(name)
    beside, series = file.with_name("meta.json"), file.with_name("timeseries.csv")
    meta = table(json_of(beside, text_of(beside)) if beside.is_file() else None)
    settings = parsed(_Meta, str(beside), meta).model_dump(exclude_none=True)
    if not settings.get("enable_expert_parallel"):
        settings.pop("enable_expert_parallel", None)
    hash_ids = _hash_ids(file, meta.get("dataset_path"), len(rows))
    notes: tuple[str, ...] = ()
    if hash_ids is None and settings.get("enable_prefix_caching"):
        notes = (
            f"{file}: the server caches prefixes, and prompts' tokens are not known: no hit is simulated",
        )
    run = RecordedRun.of(
        name,
        [parsed(_Request, name, row, row=number) for number, row in enumerate(rows)],
        hash_ids=hash_ids,
        series=_series(series) if series.is_file() else None,
        server=settings,
        notes=notes,
    )
    return (run,)


def _series(file: Path) -> Series:
    """Return the server's state in each second."""
    cells = csv_of(file, text_of(file), tuple(_Instant.model_fields))
    rows = [parsed(_Instant, f"{file}: line {line}", each) for line, each in enumerate(cells, 2)]
    t, running, waiting, use = np.array([list(row.model_dump().values()) for row in rows]).T
    if (np.diff(t) <= 0).any():
        raise PagesimError(f"{file}: t does not rise; times of a clock that never runs backwards are needed")
    return Series(t, running, waiting, use / 100)


def _hash_ids(file: Path, named: object, size: int) -> Sequence[tuple[int, ...]] | None:
    """Return the block hashes of each prompt, if the file named in ``meta.json`` is near; else None."""
    if not isinstance(named, str) or not named.isprintable() or len(Path(named).name) > 255:
        return None
    beside = [folder / Path(named).name for folder in (file.parent, file.parent.parent)]
    found = next((each for each in beside if each.is_file()), None)
    try:
        hash_ids = None if found is None else load(found).hash_ids
    except TraceError:
        return None
    if hash_ids is None:
        return None
    if len(hash_ids) < size:
        raise PagesimError(f"{found}: has {len(hash_ids)} prompts; {file} has {size} requests")
    return hash_ids

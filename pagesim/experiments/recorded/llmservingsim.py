"""Reads LLMServingSim's ``requests.jsonl``: what an engine itself wrote of its requests, with its settings.

``meta.json`` beside it has the engine's settings, and names the file of the prompts with their tokens, from
which prefix hits follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import PlainValidator

from pagesim.errors import PagesimError
from pagesim.experiments.recorded.layout import (
    Instant,
    Layout,
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

_Cell = Annotated[float, PlainValidator(number(0, 1e9, cell=True))]


class _Request(Layout):
    start: Instant = at("queued_ts")
    first: Instant = at("first_token_ts")
    last: Instant = at("last_token_ts")
    prompt: Tokens = at("input_toks")
    output: Tokens = at("output_toks")
    gaps: None = None


class _Instant(Layout):
    t: _Cell
    running: _Cell
    waiting: _Cell
    kv_cache_pct: _Cell


class _Cache(Layout):
    block_size: Annotated[float, PlainValidator(number(1, 1 << 16, whole=True))]


def fits(rows: object) -> bool:
    """Return whether a file's data may be such requests."""
    return isinstance(rows, list) and bool(rows) and "first_token_ts" in table(rows[0])


def read(name: str, rows: Sequence[Any]) -> tuple[RecordedRun, ...]:
    """Return the run, with what ``meta.json`` says of the server and ``timeseries.csv`` of its queue.

    Args:
        name: of the file.
        rows: a request each.

    Raises:
        PagesimError: a field is missing or no number, or a file beside it is broken.
    """
    file = Path(name)
    found = [parsed(_Request, name, row, row=at) for at, row in enumerate(rows)]
    beside = file.with_name("meta.json")
    meta = table(json_of(beside, text_of(beside)) if beside.is_file() else None)
    settings = _settings(meta)
    if "block_size" in settings:
        settings["block_size"] = int(parsed(_Cache, str(beside), settings).block_size)
    prompts = _prompts(file, meta, len(rows))
    notes: tuple[str, ...] = ()
    if prompts is None and settings.get("enable_prefix_caching"):
        notes = (
            f"{file}: the server caches prefixes, and prompts' tokens are not known: no hit is simulated",
        )
    series = file.with_name("timeseries.csv")
    run = RecordedRun.of(
        name,
        found,
        prompt_ids=prompts,
        series=_series(series) if series.is_file() else None,
        server=settings,
        notes=notes,
    )
    return (run,)


def _series(file: Path) -> Series:
    """Return what the server said each second."""
    cells = csv_of(file, text_of(file), tuple(_Instant.model_fields))
    rows = [parsed(_Instant, f"{file}: line {line}", each) for line, each in enumerate(cells, 2)]
    t, running, waiting, use = np.array([list(row.model_dump().values()) for row in rows]).T
    if (np.diff(t) <= 0).any():
        raise PagesimError(f"{file}: t does not rise; times of a clock that never runs backwards are needed")
    return Series(t, running, waiting, use / 100)


def _settings(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known of the server, by the names of options."""
    given, cache, hardware = (table(meta.get(name)) for name in ("engine_kwargs", "kv_cache", "hardware"))
    scheduling = table(table(meta.get("resolved_config")).get("scheduler_config"))
    found = {
        "model": meta.get("model"),
        "gpu": hardware.get("device_name"),
        "vllm_version": meta.get("vllm_version"),
        "tensor_parallel_size": given.get("tensor_parallel_size"),
        "max_model_len": given.get("max_model_len"),
        "max_num_seqs": scheduling.get("max_num_seqs", given.get("max_num_seqs")),
        "max_num_batched_tokens": scheduling.get(
            "max_num_batched_tokens", given.get("max_num_batched_tokens")
        ),
        "async_scheduling": scheduling.get("async_scheduling"),
        "enable_chunked_prefill": scheduling.get("enable_chunked_prefill"),
        "num_blocks": cache.get("num_gpu_blocks"),
        "block_size": cache.get("block_size"),
        "enable_prefix_caching": cache.get("enable_prefix_caching"),
    }
    return {name: value for name, value in found.items() if value is not None}


def _prompts(file: Path, meta: Mapping[str, Any], size: int) -> list[list[int]] | None:
    """Return the tokens of each prompt, where the file that ``meta.json`` names is near."""
    named = meta.get("dataset_path")
    if not isinstance(named, str) or not named.isprintable() or len(Path(named).name) > 255:
        return None
    beside = [folder / Path(named).name for folder in (file.parent, file.parent.parent)]
    found = next((each for each in beside if each.is_file()), None)
    if found is None:
        return None
    rows = json_of(found, text_of(found))
    rows = rows if isinstance(rows, list) else [rows]
    prompts: list[Any] = [table(row).get("input_tok_ids") for row in rows]
    # Names of blocks are made of tokens.
    if not all(isinstance(each, list) and set(map(type, each)) <= {int} for each in prompts):
        return None
    if len(prompts) < size:
        raise PagesimError(f"{found}: has {len(prompts)} prompts; {file} has {size} requests")
    return prompts

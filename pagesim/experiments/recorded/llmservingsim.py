"""Reads LLMServingSim's ``requests.jsonl``: what an engine itself wrote of its requests, with its settings.

``meta.json`` beside it has the engine's settings, and names the file of the prompts with their tokens, from
which prefix hits follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pagesim.errors import PagesimError, brief
from pagesim.experiments.recorded import fields
from pagesim.experiments.recorded.recording import Floats, RecordedRun, Series

TIMES = ("queued_ts", "first_token_ts", "last_token_ts")
LENGTHS = ("input_toks", "output_toks")


def fits(rows: Sequence[Any]) -> bool:
    """Return whether the rows of a file may be such requests."""
    return bool(rows) and isinstance(rows[0], Mapping) and "first_token_ts" in rows[0]


def read(file: Path, rows: Sequence[Mapping[str, Any]]) -> RecordedRun:
    """Return the run, with what ``meta.json`` says of the server and ``timeseries.csv`` of its queue.

    Args:
        file: of the rows.
        rows: a request each.

    Raises:
        PagesimError: a field is missing or no number, or a file beside it is broken.
    """
    columns = _columns(file, rows)
    meta = fields.table(fields.json_of(beside) if (beside := file.with_name("meta.json")).is_file() else None)
    settings = _settings(meta)
    block_size: Any = settings.get("block_size", 16)
    if not fields.is_number(block_size, 1 << 16, 1) or block_size % 1:
        raise PagesimError(f"{beside}: block_size is {brief(block_size)}; a whole number from 1 is needed")
    prompts = _prompts(file, meta, len(rows))
    notes: tuple[str, ...] = ()
    if prompts is None and settings.get("enable_prefix_caching"):
        notes = (
            f"{file}: the server caches prefixes, and prompts' tokens are not known: no hit is simulated",
        )
    order = np.argsort(columns["queued_ts"], kind="stable")
    start = columns["queued_ts"].min()
    queued, first, last = (columns[name][order] - start for name in TIMES)
    series = file.with_name("timeseries.csv")
    return RecordedRun(
        str(file),
        queued,
        columns["input_toks"][order].astype(np.int64),
        columns["output_toks"][order].astype(np.int64),
        first - queued,
        last - queued,
        prompt_ids=None if prompts is None else [prompts[row] for row in order],
        series=_series(series) if series.is_file() else None,
        server=settings,
        notes=notes,
    ).check()


def _series(file: Path) -> Series:
    """Return what the server said each second."""
    names = ("t", "running", "waiting", "kv_cache_pct")
    rows = fields.csv_of(file, names)
    t, running, waiting, use = (
        np.array([fields.number(file, at, name, row[name]) for at, row in enumerate(rows, 2)])
        for name in names
    )
    if (np.diff(t) <= 0).any():
        raise PagesimError(f"{file}: t does not rise; times of a clock that never runs backwards are needed")
    return Series(t, running, waiting, use / 100)


def _columns(file: Path, rows: Sequence[Any]) -> dict[str, Floats]:
    """Return times and lengths by name, ``[N]`` each."""
    for number, row in enumerate(rows, 1):
        for name in (*TIMES, *LENGTHS):
            if name not in fields.table(row):
                raise PagesimError(f"{file}: line {number}: has no {name}, which each request must have")
    where = str(file)
    return {
        **{name: fields.seconds(where, name, [row[name] for row in rows], fields.INSTANT) for name in TIMES},
        **{name: fields.tokens(where, name, [row[name] for row in rows], 1) for name in LENGTHS},
    }


def _settings(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known of the server, by the names of options."""
    given, cache, hardware = (
        fields.table(meta.get(name)) for name in ("engine_kwargs", "kv_cache", "hardware")
    )
    scheduling = fields.table(fields.table(meta.get("resolved_config")).get("scheduler_config"))
    found = {
        "model": meta.get("model"),
        "gpu": hardware.get("device_name"),
        "vllm_version": meta.get("vllm_version"),
        "tensor_parallel_size": given.get("tensor_parallel_size"),
        "data_parallel_size": given.get("data_parallel_size"),
        "enable_expert_parallel": given.get("enable_expert_parallel") or None,
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
    rows = fields.lines_of(found, fields.text_of(found))
    prompts: list[Any] = [fields.table(row).get("input_tok_ids") for row in rows]
    # Names of blocks are made of tokens.
    if not all(isinstance(each, list) and set(map(type, each)) <= {int} for each in prompts):
        return None
    if len(prompts) < size:
        raise PagesimError(f"{found}: has {len(prompts)} prompts; {file} has {size} requests")
    return prompts

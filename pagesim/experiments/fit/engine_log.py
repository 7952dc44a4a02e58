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
from pagesim.experiments.fit.loads import Floats, Load
from pagesim.setup.reading import parse_json

TIMES = ("queued_ts", "first_token_ts", "last_token_ts")
LENGTHS = ("input_toks", "output_toks")


def fits(rows: Sequence[Any]) -> bool:
    """Return whether the rows of a file may be such requests."""
    return bool(rows) and isinstance(rows[0], Mapping) and "first_token_ts" in rows[0]


def read(file: Path, rows: Sequence[Mapping[str, Any]]) -> tuple[Load, dict[str, Any]]:
    """Return the load, and what ``meta.json`` says of the server.

    Args:
        file: of the rows.
        rows: a request each.

    Raises:
        PagesimError: a field is missing or no number, or ``meta.json`` is broken.
    """
    columns = {name: _column(file, rows, name) for name in (*TIMES, *LENGTHS)}
    meta = _meta(file.with_name("meta.json"))
    settings = _settings(meta)
    block_size = int(settings.get("block_size", 16))
    prompts = _prompts(file, meta)
    notes: tuple[str, ...] = ()
    if prompts is None and settings.get("enable_prefix_caching"):
        notes = (
            f"{file}: the server caches prefixes, and prompts' tokens are not known: no hit is simulated",
        )
    blocks = None if prompts is None else named(prompts, block_size)
    order = np.argsort(columns["queued_ts"], kind="stable")
    start = columns["queued_ts"].min()
    queued, first, last = (columns[name][order] - start for name in TIMES)
    load = Load(
        str(file),
        queued,
        columns["input_toks"][order].astype(np.int64),
        columns["output_toks"][order].astype(np.int64),
        first,
        last,
        hash_ids=None if blocks is None else [blocks[row] for row in order],
        hash_block_size=block_size,
        notes=notes,
    )
    load.check()
    return load, settings


def named(prompts: Sequence[Sequence[int]], block_size: int) -> list[tuple[int, ...]]:
    """Return names of each prompt's full blocks: alike where all tokens up to a block's end are."""
    names: dict[tuple[int, tuple[int, ...]], int] = {}
    found = []
    for tokens in prompts:
        before, own = -1, []
        for start in range(0, len(tokens) // block_size * block_size, block_size):
            before = names.setdefault((before, tuple(tokens[start : start + block_size])), len(names))
            own.append(before)
        found.append(tuple(own))
    return found


def _column(file: Path, rows: Sequence[Mapping[str, Any]], name: str) -> Floats:
    for number, row in enumerate(rows, 1):
        value = row.get(name) if isinstance(row, Mapping) else None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise PagesimError(f"{file}: line {number}: {name} is {brief(value)}; a number is needed")
        if name in LENGTHS and value < 1:
            raise PagesimError(f"{file}: line {number}: {name} is {value}; it must be at least 1")
    return np.array([row[name] for row in rows], np.float64)


def _meta(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        data = parse_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PagesimError(f"{file}: cannot be read ({error})") from None
    return data if isinstance(data, dict) else {}


def _settings(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known of the server, by the names of options."""
    given, cache, hardware = (meta.get(name) or {} for name in ("engine_kwargs", "kv_cache", "hardware"))
    resolved = meta.get("resolved_config") or {}
    scheduling = resolved.get("scheduler_config") or {}
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
        "num_blocks": cache.get("num_gpu_blocks"),
        "block_size": cache.get("block_size"),
        "enable_prefix_caching": cache.get("enable_prefix_caching"),
    }
    return {name: value for name, value in found.items() if value is not None}


def _prompts(file: Path, meta: Mapping[str, Any]) -> list[list[int]] | None:
    """Return the tokens of each prompt, where the file that ``meta.json`` names is near."""
    name = Path(str(meta.get("dataset_path") or "")).name
    beside = [folder / name for folder in (file.parent, file.parent.parent)]
    found = next((each for each in beside if name and each.is_file()), None)
    if found is None:
        return None
    rows = [parse_json(line) for line in found.read_text(encoding="utf-8").splitlines() if line.strip()]
    tokens = [row.get("input_tok_ids") if isinstance(row, Mapping) else None for row in rows]
    return None if any(not isinstance(each, list) for each in tokens) else tokens  # type: ignore[return-value]

"""Reads a table of closed-loop runs that are known by their means: a row a run.

Lengths of single requests are not in it. Ten requests for each client are drawn: uniformly from 0.8 to 1.0 of
``isl`` and ``osl`` for Llama-3.1-70B in FP8, from 0.8 to 1.2 for Qwen3-32B, and all alike otherwise, as those
who measured them say.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pagesim.experiments.recorded import fields
from pagesim.experiments.recorded.run import Floats, Ints, RecordedRun

COLUMNS = ("model", "system", "dtype", "release", "isl", "osl", "concurrency", "tp", "ttft_ms", "tpot_ms")
OF_A_CLIENT = 10
"""Requests for each client."""

SPREAD = {"Llama-3.1-70B": (0.8, 1.0), "Qwen3-32B": (0.8, 1.2)}
"""Of lengths, as shares of ``isl`` and ``osl``, by the model's name."""

_OF_FP8_LLAMA = {"max_num_batched_tokens": 8192, "kv_cache_dtype": "fp8"}
_ASYNCHRONOUS = "asynchronous scheduling of vLLM 0.10.2 is in no log of its decisions, and is not simulated"


def fits(text: str) -> bool:
    """Return whether a text may be such a table."""
    header = text.partition("\n")[0].strip().split(",")
    return {"isl", "osl", "concurrency", "ttft_ms", "tpot_ms"} <= set(header)


def read(file: Path) -> tuple[RecordedRun, ...]:
    """Return the runs.

    Raises:
        PagesimError: a column is missing, or a cell is no number.
    """
    return tuple(_run(file, line, row) for line, row in enumerate(fields.csv_of(file, COLUMNS), 2))


def _run(file: Path, line: int, row: Mapping[str, str]) -> RecordedRun:
    def whole(name: str, most: int) -> int:
        return int(min(most, fields.number(file, line, name, row[name], 1)))

    isl, osl = whole("isl", 10_000_000), whole("osl", 10_000_000)
    clients = whole("concurrency", 10_000)
    model = str(row["model"]).rsplit("/", 1)[-1]
    low, high = SPREAD.get(model, (1.0, 1.0))
    size = OF_A_CLIENT * clients
    draw = np.random.default_rng(line)

    def lengths(mean: int) -> Ints:
        found: Ints = np.maximum(1, np.rint(mean * draw.uniform(low, high, size))).astype(np.int64)
        return found

    notes: tuple[str, ...] = (f"{file}: line {line}: {row['note']}",) if row.get("note") else ()
    nothing: Floats = np.empty(0)
    server = _settings(file, line, row, model, clients)
    if _OF_FP8_LLAMA.items() <= server.items():
        notes += (_ASYNCHRONOUS,)
    return RecordedRun(
        f"{line}: {model} {row['dtype']} {row['system']} {row['release'] or '?'} tp{row['tp']} "
        f"{isl}/{osl} c{clients}",
        np.zeros(size),
        lengths(isl),
        lengths(osl),
        nothing,
        nothing,
        max_concurrency=clients,
        means={
            "ttft": fields.number(file, line, "ttft_ms", row["ttft_ms"]) / 1e3,
            "tpot": fields.number(file, line, "tpot_ms", row["tpot_ms"]) / 1e3,
        },
        server=server,
        notes=notes,
    )


def _settings(file: Path, line: int, row: Mapping[str, str], model: str, clients: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "model": row["model"],
        "gpu": str(row["system"]).removesuffix("_sxm"),
        "tensor_parallel_size": int(fields.number(file, line, "tp", row["tp"], 1)),
        "expert_parallel_size": int(fields.number(file, line, "ep", row.get("ep") or "1")),
        "enable_prefix_caching": False,
        # Never are there more than clients.
        "max_num_seqs": clients,
        # Of other dtypes it is the model's release that says which layers have them.
        **({"weight_dtype": row["dtype"]} if row["dtype"] in ("bf16", "fp8", "nvfp4") else {}),
    }
    if row["release"]:
        found["vllm_version"] = row["release"]
    if model == "Llama-3.1-70B" and row["dtype"] == "fp8" and row["release"] == "0.10.2":
        found |= _OF_FP8_LLAMA
    return found

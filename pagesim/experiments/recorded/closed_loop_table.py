"""Reads a table of closed-loop runs that are known by their means: a row a run.

Lengths of single requests are not in it, nor how servers were started. Ten requests for each client are drawn
uniformly between shares of ``isl`` and ``osl``; these and the servers' flags are of the scripts of those who
measured them (`closed_loop_servers`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pagesim.experiments.recorded import fields
from pagesim.experiments.recorded.closed_loop_servers import TableRow, settings, spread
from pagesim.experiments.recorded.recording import Floats, Ints, RecordedRun

COLUMNS = ("model", "system", "dtype", "release", "isl", "osl", "concurrency", "tp", "ttft_ms", "tpot_ms")
OF_A_CLIENT = 10
"""Requests for each client."""


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
    low, high = spread(model)
    size = OF_A_CLIENT * clients
    draw = np.random.default_rng(line)

    def lengths(mean: int) -> Ints:
        found: Ints = np.maximum(1, np.rint(mean * draw.uniform(low, high, size))).astype(np.int64)
        return found

    notes: tuple[str, ...] = (f"{file}: line {line}: {row['note']}",) if row.get("note") else ()
    nothing: Floats = np.empty(0)
    server = _settings(file, line, row, model, clients)
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
    gpu = str(row["system"]).removesuffix("_sxm")
    tp = int(fields.number(file, line, "tp", row["tp"], 1))
    ep = int(fields.number(file, line, "ep", row.get("ep") or "1"))
    isl = int(fields.number(file, line, "isl", row["isl"], 1))
    found: dict[str, Any] = {
        "model": row["model"],
        "gpu": gpu,
        "tensor_parallel_size": tp,
        "expert_parallel_size": ep,
        "enable_prefix_caching": False,
        # Never are there more than clients.
        "max_num_seqs": clients,
        # Of other dtypes it is the model's release that says which layers have them.
        **({"weight_dtype": row["dtype"]} if row["dtype"] in ("bf16", "fp8", "nvfp4") else {}),
    }
    if row["release"]:
        found["vllm_version"] = row["release"]
    release = tuple(int(part) for part in row["release"].split(".")[:2] if part.isdecimal())
    found |= settings(TableRow(model, row["dtype"], gpu, release, isl, clients, tp, ep))
    return {name: value for name, value in found.items() if value is not None}

"""Reads a table of closed-loop runs that are known by their means: a row a run.

Lengths of single requests are not in it, nor how servers were started. Ten requests for each client are drawn
uniformly between shares of ``isl`` and ``osl``; these and the servers' flags are of the scripts of those who
measured them (`closed_loop_servers`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import PlainValidator

from pagesim.experiments.recorded.closed_loop_servers import TableRow, settings, spread
from pagesim.experiments.recorded.layout import Layout, csv_of, number, parsed, text_of
from pagesim.experiments.recorded.recording import Ints, RecordedRun
from pagesim.experiments.recorded.summarized import summarized

COLUMNS = ("model", "system", "dtype", "release", "isl", "osl", "concurrency", "tp", "ttft_ms", "tpot_ms")
OF_A_CLIENT = 10
"""Requests for each client."""

_ASYNCHRONOUS = "asynchronous scheduling of vLLM 0.10.2 is in no log of its decisions, and is not simulated"

_Whole = Annotated[float, PlainValidator(number(1, 10_000_000, whole=True, cell=True))]
_Degree = Annotated[float, PlainValidator(number(0, 10_000, whole=True, cell=True))]
_Milliseconds = Annotated[float, PlainValidator(number(0, 1e9, cell=True))]


class _Row(Layout):
    model: str
    system: str
    dtype: str
    release: str
    isl: _Whole
    osl: _Whole
    concurrency: Annotated[float, PlainValidator(number(1, 10_000, whole=True, cell=True))]
    tp: _Whole
    ep: _Degree = 1.0
    ttft_ms: _Milliseconds
    tpot_ms: _Milliseconds
    note: str | None = None


def fits(text: str) -> bool:
    """Return whether a text may be such a table."""
    header = text.partition("\n")[0].strip().split(",")
    return {"isl", "osl", "concurrency", "ttft_ms", "tpot_ms"} <= set(header)


def read(file: Path) -> tuple[RecordedRun, ...]:
    """Return the runs.

    Raises:
        PagesimError: a column is missing, or a cell is no number.
    """
    return tuple(_run(file, line, row) for line, row in enumerate(csv_of(file, text_of(file), COLUMNS), 2))


def _run(file: Path, line: int, cells: Mapping[str, str]) -> RecordedRun:
    given = {name: cell for name, cell in cells.items() if name != "ep" or cell}
    row = parsed(_Row, f"{file}: line {line}", given)
    model, clients = row.model.rsplit("/", 1)[-1], int(row.concurrency)
    low, high = spread(model)
    draw = np.random.default_rng(line)

    def lengths(mean: float) -> Ints:
        drawn = np.rint(mean * draw.uniform(low, high, OF_A_CLIENT * clients))
        found: Ints = np.maximum(1, drawn).astype(np.int64)
        return found

    notes: tuple[str, ...] = (f"{file}: line {line}: {row.note}",) if row.note else ()
    if model == "Llama-3.1-70B" and row.release == "0.10.2":
        notes += (_ASYNCHRONOUS,)
    return summarized(
        f"{line}: {model} {row.dtype} {row.system} {row.release or '?'} tp{row.tp:.0f} "
        f"{row.isl:.0f}/{row.osl:.0f} c{clients}",
        {"ttft": {"mean": row.ttft_ms / 1e3}, "tpot": {"mean": row.tpot_ms / 1e3}},
        lengths(row.isl),
        lengths(row.osl),
        clients=clients,
        server=_settings(row, model, clients),
        notes=notes,
    )


def _settings(row: _Row, model: str, clients: int) -> dict[str, Any]:
    gpu = row.system.removesuffix("_sxm")
    tp, ep = int(row.tp), int(row.ep)
    found: dict[str, Any] = {
        "model": row.model,
        "gpu": gpu,
        "tensor_parallel_size": tp,
        "expert_parallel_size": ep,
        "enable_prefix_caching": False,
        # Never are there more than clients.
        "max_num_seqs": clients,
        # Of other dtypes it is the model's release that says which layers have them.
        **({"weight_dtype": row.dtype} if row.dtype in ("bf16", "fp8", "nvfp4") else {}),
    }
    if row.release:
        found["vllm_version"] = row.release
    release = tuple(int(part) for part in row.release.split(".")[:2] if part.isdecimal())
    found |= settings(TableRow(model, row.dtype, gpu, release, int(row.isl), clients, tp, ep))
    return {name: value for name, value in found.items() if value is not None}

"""Reads a table of closed-loop runs of which only means are known, one row per run.

It has neither the requests' lengths nor the servers' settings. Ten requests per client are drawn uniformly
between shares of ``isl`` and ``osl``. These shares and the servers' flags come from the scripts of those who
measured the runs (`closed_loop_servers`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pagesim.experiments.recorded.closed_loop_servers import TableRow, settings, spread
from pagesim.experiments.recorded.layout import csv_of, parsed, text_of
from pagesim.experiments.recorded.recording import Ints, RecordedRun

COLUMNS = ("model", "system", "dtype", "release", "isl", "osl", "concurrency", "tp", "ttft_ms", "tpot_ms")
OF_A_CLIENT = 10
"""Requests per client."""


def fits(text: str) -> bool:
    """Return whether a text looks like such a table."""
    header = text.partition("\n")[0].strip().split(",")
    return {"isl", "osl", "concurrency", "ttft_ms", "tpot_ms"} <= set(header)


def read(file: Path) -> tuple[RecordedRun, ...]:
    """Return the runs of a table, one per row.

    Raises:
        PagesimError: a column is missing, or a cell is not a number.
    """
    return tuple(_run(file, line, row) for line, row in enumerate(csv_of(file, text_of(file), COLUMNS), 2))


def _run(file: Path, line: int, cells: Mapping[str, str]) -> RecordedRun:
    given = {name: cell for name, cell in cells.items() if name != "ep" or cell}
    row = parsed(TableRow, f"{file}: line {line}", given)
    clients, (low, high) = int(row.concurrency), spread(row.name)
    draw = np.random.default_rng(line)

    def lengths(mean: float) -> Ints:
        drawn = np.rint(mean * draw.uniform(low, high, OF_A_CLIENT * clients))
        found: Ints = np.maximum(1, drawn).astype(np.int64)
        return found

    notes: tuple[str, ...] = (f"{file}: line {line}: {row.note}",) if row.note else ()
    server = {
        "model": row.model,
        "gpu": row.gpu,
        "vllm_version": row.release or None,
        "tensor_parallel_size": int(row.tp),
        "expert_parallel_size": int(row.ep),
        "enable_prefix_caching": False,
        # There are never more requests than clients.
        "max_num_seqs": clients,
        # For other dtypes, the model's checkpoint determines which layers use them.
        "weight_dtype": row.dtype if row.dtype in ("bf16", "fp8", "nvfp4") else None,
        **settings(row),
    }
    if server["expert_parallel_size"] > 1:
        server["enable_expert_parallel"] = True
    return RecordedRun.summarized(
        f"{line}: {row.name} {row.dtype} {row.system} {row.release or '?'} tp{row.tp:.0f} "
        f"{row.isl:.0f}/{row.osl:.0f} c{clients}",
        {"ttft": {"mean": row.ttft_ms / 1e3}, "tpot": {"mean": row.tpot_ms / 1e3}},
        lengths(row.isl),
        lengths(row.osl),
        clients=clients,
        server={name: value for name, value in server.items() if value is not None},
        notes=notes,
    )

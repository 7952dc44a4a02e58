"""AIPerf's inputs of sessions: Mooncake's columns, where later turns have a delay in place of a time.

Source: github.com/ai-dynamo/aiperf, docs on trace replay and multi-turn datasets.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pagesim.workloads.rows import Rows
from pagesim.workloads.tables import hash_ids
from pagesim.workloads.trace import HASH_BLOCK_SIZE
from pagesim.workloads.values import is_missing, names


def read_aiperf(rows: Rows) -> dict[str, Any]:
    """Read sessions as closed loops: a later turn is sent ``delay`` ms after the end of the one before it.

    The first turn of a session arrives at its ``timestamp`` in ms, or at 0 s where it has none.
    """
    for name in ("timestamp", "delay"):
        if name not in rows.columns:
            rows.columns = {**rows.columns, name: [0] * len(rows)}
        given = rows.column(name)
        rows.columns = {**rows.columns, name: [0 if is_missing(value) else value for value in given]}
    prompts = rows.tokens("input_length")
    columns: dict[str, Any] = {
        "prompt_tokens": prompts,
        "output_tokens": rows.tokens("output_length"),
        "session_id": names(rows.column("session_id")),
        "arrival_s": rows.seconds("timestamp", per_second=1000),
        "think_s": rows.seconds("delay", per_second=1000),
    }
    if "hash_ids" in rows.columns:
        columns["hash_ids"] = hash_ids(rows, prompts, HASH_BLOCK_SIZE)
    columns = rows.settled(columns)
    begun: dict[Any, float] = {}
    arrivals = columns["arrival_s"].tolist()
    for row, name in enumerate(columns["session_id"].tolist()):
        arrivals[row] = begun.setdefault(name, arrivals[row])
    columns["arrival_s"] = np.array(arrivals)
    return columns

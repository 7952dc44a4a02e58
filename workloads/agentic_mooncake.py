"""Agentic Mooncake, version 2: plays of agents, whose requests wait for one another.

Source: docs.nvidia.com/dynamo and the crate aisimulate-core, ``AgenticMooncakeRow``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pagesim.errors import TraceError
from pagesim.workloads.rows import Rows, shown
from pagesim.workloads.tables import hash_ids
from pagesim.workloads.trace import MAX_THINK_S, MAX_TOKENS
from pagesim.workloads.values import is_missing, number

SCHEMA, VERSION = "dynamo.agentic_mooncake", 2


def read_agentic_mooncake(rows: Rows) -> dict[str, Any]:
    """Read the requests of each play's sessions as closed loops.

    The first request of a session arrives at its ``not_before_ms``, counted from the start of its play, and
    all plays start at 0 s. A later one is sent when the one before it in its session is over, after the
    ``delay_ms`` of that dependency. What requests wait for beside that (spawned sessions, joins, the sending
    of a request) is not kept: the notes say how many dependencies that are.
    """
    block_size = _header(rows)
    prompts = rows.tokens("input_length")
    columns: dict[str, Any] = {
        "prompt_tokens": prompts,
        "output_tokens": rows.tokens("output_length"),
        "hash_ids": hash_ids(rows, prompts, block_size),
        "not_before": rows.seconds("not_before_ms", per_second=1000),
        "request_id": rows.distinct("request_id"),
    }
    for name in ("play_id", "session_id"):
        given = [is_missing(v) for v in rows.column(name)]
        rows.reject_values(name, ~np.array(given, bool), "a name")
    waits_for = rows.column("dependencies") if "dependencies" in rows.columns else [None] * len(rows)
    edges = [_edges(v) for v in waits_for]
    rows.reject(
        np.array([e is None for e in edges], bool),
        lambda row: (
            f"dependencies {shown(waits_for[row])}; each must be an object with "
            f"request_id, trigger (dispatch or completion) and delay_ms from 0 to {MAX_THINK_S * 1000:g}"
        ),
    )
    columns["edges"] = np.fromiter(edges, object, len(edges))
    plays, sessions = rows.column("play_id"), rows.column("session_id")
    columns["session_id"] = np.array(
        [f"{play} {session}" for play, session in zip(plays, sessions, strict=True)], object
    )
    columns = rows.settled(columns)
    begun: dict[str, float] = {}
    before: dict[str, str] = {}
    arrivals, waits, dropped = [], [], 0
    own = columns.pop("edges").tolist()
    times = columns.pop("not_before").tolist()
    ids = [str(v) for v in columns["request_id"].tolist()]
    for name, time, request, found in zip(columns["session_id"].tolist(), times, ids, own, strict=True):
        kept = [delay for of, trigger, delay in found if trigger == "completion" and of == before.get(name)]
        dropped += len(found) - len(kept)
        waits.append(max(kept, default=0.0))
        arrivals.append(begun.setdefault(name, time))
        before[name] = request
    columns["arrival_s"] = np.array(arrivals)
    columns["think_s"] = np.array(waits)
    if dropped:
        rows.notes.append(
            f"{dropped} of {sum(map(len, own))} dependencies are not kept: sessions wait here for "
            "nothing but the end of their own last turn"
        )
    return {**columns, "hash_block_size": block_size}


def _header(rows: Rows) -> int:
    """Leave out the first row, which says the block size, and return that.

    Raises:
        TraceError: the first row is no header of this version.
    """
    said = {name: rows.columns[name][0] for name in rows.columns}
    if said.get("schema") != SCHEMA or said.get("version") != VERSION:
        raise TraceError(
            f"{rows.path}: the first row has schema {shown(said.get('schema'))} and version "
            f"{shown(said.get('version'))}; it must be {SCHEMA}, version {VERSION}: write the file anew"
        )
    size = number(said.get("block_size"))
    if not (1 <= size <= MAX_TOKENS and size == int(size)):
        raise TraceError(
            f"{rows.path}: the header's block_size {shown(said.get('block_size'))}; "
            f"it must be a whole number from 1 to {MAX_TOKENS}"
        )
    rows.used |= {"schema", "version", "block_size"}
    rows.leave_out(np.arange(len(rows)) == 0, "the header")
    return int(size)


def _edges(value: object) -> list[tuple[str, str, float]] | None:
    """Return what a request waits for: the other one, the trigger, and seconds; None if that is no list."""
    if value is None:
        return []
    if not isinstance(value, list):
        return None
    found = []
    for each in value:
        if not isinstance(each, dict):
            return None
        delay, trigger = number(each.get("delay_ms")) / 1000, each.get("trigger")
        if trigger not in ("dispatch", "completion") or not 0 <= delay <= MAX_THINK_S:
            return None
        found.append((str(each.get("request_id")), str(trigger), delay))
    return found

"""LLMServingSim's workloads: single requests, and agents' sessions of calls with tools between them.

Source: github.com/casys-kaist/LLMServingSim, workloads/README.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from pagesim.errors import brief
from pagesim.workloads.naming import named
from pagesim.workloads.rows import Rows, shown
from pagesim.workloads.trace import MAX_THINK_S, MAX_TOKENS
from pagesim.workloads.values import id_list, is_missing, number

BLOCK_SIZE = 16
"""Tokens a name of ``hash_ids`` stands for, where the file has the tokens of prompts: vLLM's block."""

CALL = ("input_toks", "output_toks", "tool_duration_ns", "input_tok_ids")


class Call(NamedTuple):
    """One request of a session: lengths, what the tool after it takes, and its prompt's tokens."""

    prompt: int
    output: int
    tool_s: float
    ids: tuple[int, ...]


def read_llmservingsim(rows: Rows) -> dict[str, Any]:
    """Read requests and sessions, which a file may mix.

    A call of a session is sent when the one before it is over and its tool has answered, so the file of
    sessions has ``think_s``. Prompts whose tokens are known share the blocks that are equal; where no tokens
    are known, a call of a session extends the one before it if it is long enough.
    """
    starts = rows.seconds("arrival_time_ns", per_second=1e9)
    rows.used |= {*CALL, "sub_requests", "session_id"}
    sessions: list[list[Call]] = []
    wrong: dict[int, str] = {}
    for row in range(len(rows)):
        calls, why = _calls({name: rows.columns[name][row] for name in rows.columns})
        sessions.append(calls)
        if why:
            wrong[row] = why
    rows.reject(np.isin(np.arange(len(rows)), list(wrong)), wrong.__getitem__)
    agentic = "sub_requests" in rows.columns
    if agentic:
        _check_names(rows)
    kept = rows.settle()
    calls = [call for row in kept for call in sessions[row]]
    sizes = [len(sessions[row]) for row in kept]
    columns: dict[str, Any] = {
        "arrival_s": np.repeat(starts[kept], sizes),
        "prompt_tokens": np.array([call.prompt for call in calls]),
        "output_tokens": np.array([call.output for call in calls]),
    }
    if any(call.ids for call in calls):
        columns["hash_ids"] = named([call.ids for call in calls], BLOCK_SIZE)
        columns["hash_block_size"] = BLOCK_SIZE
    if agentic:
        waits = [[0.0, *(call.tool_s for call in sessions[row][:-1])] for row in kept]
        columns["think_s"] = np.array([wait for own in waits for wait in own])
        columns["session_id"] = np.repeat(np.array([_name(rows, row) for row in kept], object), sizes)
    return columns


def _name(rows: Rows, row: int) -> str:
    given = rows.columns["session_id"][row] if "session_id" in rows.columns else None
    return f"row {row + 1}" if is_missing(given) else str(given)


def _check_names(rows: Rows) -> None:
    seen: dict[str, int] = {}
    first = [seen.setdefault(_name(rows, row), row) for row in range(len(rows))]
    rows.reject(
        np.array(first) != np.arange(len(rows)),
        lambda row: (
            f"session_id {shown(_name(rows, row))}, as in row {first[row] + 1}; each session is one row, "
            "with all its calls in sub_requests"
        ),
    )


def _calls(record: Mapping[str, Any]) -> tuple[list[Call], str]:
    """Return the calls of a row, and what is wrong with the first that is no call."""
    listed = record.get("sub_requests")
    if is_missing(listed):
        call, why = _call(record)
        return [call], why
    if not isinstance(listed, list) or not listed:
        return [], f"sub_requests {shown(listed)}; it must be a list of at least one call"
    found = []
    for index, each in enumerate(listed):
        if not isinstance(each, dict):
            return [], f"sub_requests[{index}] {shown(each)}; it must be an object with {', '.join(CALL[:3])}"
        call, why = _call(each)
        if why:
            return [], f"sub_requests[{index}].{why}"
        found.append(call)
    return found, ""


def _call(record: Mapping[str, Any]) -> tuple[Call, str]:
    """Return a call, and what is wrong with it."""
    prompt, output, tool, given = (record.get(name) for name in CALL)
    none = Call(1, 1, 0.0, ())
    for name, value in ((CALL[0], prompt), (CALL[1], output)):
        length = number(value)
        if not (1 <= length <= MAX_TOKENS and length == int(length)):
            return none, f"{name} {shown(value)}; it must be a whole number from 1 to {MAX_TOKENS}"
    seconds = 0.0 if is_missing(tool) else number(tool) / 1e9
    if not 0 <= seconds <= MAX_THINK_S:
        return none, f"{CALL[2]} {shown(tool)}; it must be a time from 0 to {MAX_THINK_S * 1e9:g} ns"
    ids = id_list(given)
    if ids is None or len(ids) > number(prompt):
        what = brief(given) if ids is None else f"{len(ids)} tokens"
        return none, f"{CALL[3]} is {what}; it must be at most input_toks whole numbers"
    return Call(int(number(prompt)), int(number(output)), seconds, ids), ""

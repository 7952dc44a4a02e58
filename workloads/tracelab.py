"""TraceLab's rounds of coding agents: each row one call of the model in a developer's session.

Source: github.com/uw-syfi/TraceLab, README.md (data format) and artifacts/utils.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pagesim.workloads.rows import Rows
from pagesim.workloads.sessions import thinking_between
from pagesim.workloads.trace import HASH_BLOCK_SIZE, MAX_TOKENS, FloatColumn, IntColumn
from pagesim.workloads.values import names, numbers, stamps

ASKS = ("user_message", "tool_result")
ANSWERS = ("reasoning", "text", "tool_call")


def read_tracelab(rows: Rows) -> dict[str, Any]:
    """Read lengths, sessions, what a round shares with the one before it, and times from ``timing_events``.

    A round whose input is at least as long as the last round's begins with that input; a shorter one (the
    agent has compacted its context) with as much of it as the provider's cache held, ``prefix_tokens``. That
    is told by ``hash_ids`` of full blocks of ``HASH_BLOCK_SIZE`` tokens. Sessions share nothing: what they
    have in common is not in the file.

    A round is sent at the last event that asks (a user's message, a tool's result) before the first that
    answers, and is over at the last that answers.
    """
    for name, why in (("input_tokens_total", "no input"), ("output_tokens", "nothing was generated")):
        rows.leave_out(numbers(rows.column(name)) == 0, f"{name} is 0, {why}")
    columns: dict[str, Any] = {
        "prompt_tokens": rows.tokens("input_tokens_total"),
        "output_tokens": rows.tokens("output_tokens"),
        "cached": rows.whole_numbers("prefix_tokens", 0, MAX_TOKENS),
        "round": rows.whole_numbers("round_index", 0, 2**53),
        "session_id": names(rows.column("session_id")),
    }
    rows.reject_values(
        "session_id", np.array([v is not None for v in columns["session_id"]], bool), "a session's name"
    )
    columns["start"], columns["end"] = _times(rows)
    columns = rows.settled(columns)
    seen: dict[object, int] = {}
    number_of = np.array([seen.setdefault(name, len(seen)) for name in columns["session_id"].tolist()])
    order = np.lexsort((columns["round"], number_of))
    columns = {name: column[order] for name, column in columns.items()}
    number_of = number_of[order]
    cached, prompts = columns.pop("cached"), columns["prompt_tokens"]
    columns.pop("round")
    rows.notes.append(
        f"the providers' caches held {100 * cached.sum() / prompts.sum():.1f} % of the input tokens "
        "(prefix_tokens)"
    )
    start, end = columns.pop("start"), columns.pop("end")
    untimed = int((np.isnan(start) | np.isnan(end)).sum())
    if untimed:
        rows.notes.append(
            f"{untimed} of {len(start)} rounds have no times, and follow the last round at once"
        )
    start, end = _in_order(number_of, start, end)
    columns["think_s"] = thinking_between(number_of.tolist(), start, end)
    columns["arrival_s"] = start - start.min()
    columns["hash_ids"] = _blocks(number_of, prompts, cached)
    return columns


def _times(rows: Rows) -> tuple[FloatColumn, FloatColumn]:
    """Return when each round was sent and when it was over, seconds since 1970, NaN where that is unknown."""
    given = rows.column("timing_events")
    rows.reject_values(
        "timing_events",
        np.array([v is None or (isinstance(v, list) and all(isinstance(e, dict) for e in v)) for v in given]),
        "a list of objects with event_type and timestamp",
    )
    events = [
        (row, event.get("event_type"), event.get("timestamp"))
        for row, listed in enumerate(given)
        if isinstance(listed, list)
        for event in listed
        if isinstance(event, dict)
    ]
    at, good, _ = stamps([stamp for _, _, stamp in events])
    asked: dict[int, list[float]] = {}
    answered: dict[int, list[float]] = {}
    for (row, kind, _), time, known in zip(events, (at / 1e9).tolist(), good.tolist(), strict=True):
        if known and isinstance(kind, str) and kind in (*ASKS, *ANSWERS):
            (asked if kind in ASKS else answered).setdefault(row, []).append(time)
    start, end = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
    for row, times in answered.items():
        before = [time for time in asked.get(row, ()) if time <= min(times)]
        start[row] = max(before) if before else min(times)
        end[row] = max(times)
    return start, end


def _in_order(number_of: IntColumn, start: FloatColumn, end: FloatColumn) -> tuple[FloatColumn, FloatColumn]:
    """Return the times with those unknown put at the last round's end, and none before the last round's."""
    known = start[~np.isnan(start)]
    first = float(known.min()) if len(known) else 0.0
    starts, ends = [], []
    session, sent, over = -1, first, first
    for number, own, last in zip(number_of.tolist(), start.tolist(), end.tolist(), strict=True):
        if number != session:
            session, sent, over = number, first, first
        sent = max(sent, over if np.isnan(own) else own)
        over = sent if np.isnan(last) else max(sent, last)
        starts.append(sent)
        ends.append(over)
    return np.array(starts), np.array(ends)


def _blocks(number_of: IntColumn, prompts: IntColumn, cached: IntColumn) -> Sequence[tuple[int, ...]]:
    """Return ids of each round's full blocks, those that it shares with the round before it first."""
    fresh, session, last, before = 0, -1, 0, tuple[int, ...]()
    found = []
    for number, tokens, held in zip(number_of.tolist(), prompts.tolist(), cached.tolist(), strict=True):
        if number != session:
            session, last, before = number, 0, ()
        shared = last if tokens >= last else min(held, tokens)
        kept = before[: shared // HASH_BLOCK_SIZE]
        new = tokens // HASH_BLOCK_SIZE - len(kept)
        last, before = tokens, (*kept, *range(fresh, fresh + new))
        fresh += new
        found.append(before)
    return found

"""Weka's traces of coding agents, AgentX's among them: a conversation a row, with its subagents.

Source: github.com/ai-dynamo/aiperf, docs/tutorials/weka-trace.md; datasets semianalysisai/cc-traces-weka.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from pagesim.workloads.rows import Rows, shown
from pagesim.workloads.sessions import thinking_between
from pagesim.workloads.trace import MAX_TOKENS
from pagesim.workloads.values import id_list, is_missing, number


class Call(NamedTuple):
    """One request: its agent, 0 for the root; when it was sent and how long it took; lengths; block ids."""

    agent: int
    sent_s: float
    took_s: float
    prompt: int
    output: int
    ids: tuple[int, ...]


def read_weka(rows: Rows) -> dict[str, Any]:
    """Read each agent of a conversation as a closed loop.

    An agent's first call arrives at its recorded time, from the start of its conversation. A later one is
    sent when the one before it is over, after the time that lay between them. Agents do not wait for one
    another. The times of a subagent's calls count from the subagent's own, for the whole file, where one of
    them would be before it; else from the conversation's start. Ids of blocks are a conversation's own unless
    ``hash_id_scope`` is ``global``. Calls without an output are left out.
    """
    sizes = rows.tokens("block_size")
    rows.reject(
        sizes != sizes[0],
        lambda row: f"block_size {shown(sizes[row])}; it must be {sizes[0]}, as the first",
    )
    listed = rows.column("requests")
    from_marker = any(
        number(call.get("t")) < number(marker.get("t"))
        for calls in listed
        for _, marker, call in _each(calls)
        if marker and isinstance(call, dict)
    )
    found, wrong = [], {}
    for row, calls in enumerate(listed):
        try:
            own = [_call(*each, from_marker, int(sizes[0])) for each in _each(calls)]
        except ValueError as error:
            own, wrong[row] = [], str(error)
        found.append(sorted([call for call in own if call.output], key=lambda call: call[:2]))
    rows.reject(np.isin(np.arange(len(rows)), list(wrong)), wrong.__getitem__)
    rows.leave_out(np.array([not own for own in found], bool), "no call has an output")
    scopes = rows.column("hash_id_scope")
    conversations = rows.distinct("id")
    sessions: list[str] = []
    kept: list[Call] = []
    ids: list[tuple[int, ...]] = []
    known: dict[tuple[int, int], int] = {}  # by conversation, or -1, and id
    for row in rows.settle().tolist():
        scope = -1 if scopes[row] == "global" else row
        kept += found[row]
        sessions += [f"{conversations[row]} agent {call.agent}" for call in found[row]]
        ids += [
            tuple(known.setdefault((scope, each), len(known)) for each in call.ids) for call in found[row]
        ]
    sent = np.array([call.sent_s for call in kept])
    begun: dict[str, float] = {}
    subagents = sum(call.agent > 0 for call in kept)
    if subagents:
        rows.notes.append(f"nothing waits for the {subagents} calls of subagents, out of {len(kept)}")
    return {
        "arrival_s": np.array([begun.setdefault(name, at) for name, at in zip(sessions, sent, strict=True)]),
        "prompt_tokens": np.array([call.prompt for call in kept]),
        "output_tokens": np.array([call.output for call in kept]),
        "session_id": np.array(sessions, object),
        "think_s": thinking_between(sessions, sent, sent + np.array([call.took_s for call in kept])),
        "hash_ids": ids,
        "hash_block_size": int(sizes[0]),
    }


def _each(calls: object) -> Iterator[tuple[int, dict[str, Any], Any]]:
    """Yield each call with the number of its agent, and the marker of that, which is empty for the root.

    What is no list is yielded as if it were a call.
    """
    agent = 0
    for each in calls if isinstance(calls, list) else [calls]:
        if isinstance(each, dict) and each.get("type") == "subagent":
            agent += 1
            inner = each.get("requests")
            yield from [(agent, each, call) for call in (inner if isinstance(inner, list) else [inner])]
        else:
            yield 0, {}, each


def _call(agent: int, marker: dict[str, Any], call: Any, from_marker: bool, size: int) -> Call:
    """Return a call.

    Raises:
        ValueError: what is wrong with it, in words.
    """
    if not isinstance(call, dict):
        raise ValueError(f"a call {shown(call)}; it must be an object with t, in, out and hash_ids")
    start = number(marker.get("t")) if marker and from_marker else 0.0
    sent, took = start + number(call.get("t")), number(call.get("api_time", 0.0))
    prompt = number(call.get("in"))
    output = 0.0 if is_missing(call.get("out")) else number(call["out"])
    ids = id_list(call.get("hash_ids"))
    if not (0 <= sent < np.inf and 0 <= took < np.inf):
        raise ValueError(f"a call's t {shown(call.get('t'))}; t and api_time must be finite times from 0")
    if not (1 <= prompt <= MAX_TOKENS and prompt == int(prompt)):
        raise ValueError(f"a call's in {shown(call.get('in'))}; it must be from 1 to {MAX_TOKENS}")
    if not (0 <= output <= MAX_TOKENS and output == int(output)):
        raise ValueError(f"a call's out {shown(call.get('out'))}; it must be from 0 to {MAX_TOKENS}")
    if ids is None or len(ids) > -(-int(prompt) // size):
        raise ValueError(
            f"hash_ids of a call of {int(prompt)} tokens must be an id each {size} tokens at most"
        )
    return Call(agent, sent, took, int(prompt), int(output), ids)

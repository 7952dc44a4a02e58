"""OpenTelemetry's GenAI spans: calls of a model by agents, as OTLP JSON of a collector's file exporter.

Source: OpenTelemetry's semantic conventions for generative AI spans; the file exporter's lines are
``ExportTraceServiceRequest`` messages.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pagesim.errors import TraceError
from pagesim.workloads.rows import Rows
from pagesim.workloads.sessions import thinking_between
from pagesim.workloads.trace import MAX_TOKENS
from pagesim.workloads.values import number

CALLS = ("chat", "text_completion", "generate_content")
"""Values of ``gen_ai.operation.name`` of spans in which a model generates text."""

_SECOND = 1e9  # nanoseconds


def read_spans(rows: Rows) -> dict[str, Any]:
    """Read calls of a model: their tokens, conversation, and when each began and ended.

    Calls of one ``gen_ai.conversation.id``, or else of one trace, are the turns of a session, in order of
    their beginning: each is sent so long after the end of the one before it as it was in the file. Tokens are
    ``gen_ai.usage.input_tokens`` and ``output_tokens``. Other spans, such as those of tools, are left out.
    """
    given = rows.column("resourcespans")
    rows.settle()
    calls, others, without = [], 0, 0
    for each in given:
        for span in _spans(each):
            said = _attributes(span)
            if said.get("gen_ai.operation.name") not in CALLS:
                others += 1
                continue
            prompt, output = (number(said.get(f"gen_ai.usage.{side}_tokens")) for side in ("input", "output"))
            start, end = (number(span.get(f"{side}TimeUnixNano")) / _SECOND for side in ("start", "end"))
            if not (1 <= prompt <= MAX_TOKENS and 1 <= output <= MAX_TOKENS and start <= end):
                without += 1
                continue
            session = said.get("gen_ai.conversation.id", span.get("traceId"))
            calls.append((start, end, int(prompt), int(output), str(session)))
    if others:
        rows.notes.append(f"left out {others} spans that are no call of a model")
    if without:
        rows.notes.append(f"left out {without} calls without tokens (gen_ai.usage) or times")
    if not calls:
        raise TraceError(
            f"{rows.path}: no span is a call of a model: gen_ai.operation.name must be {', '.join(CALLS)}, "
            "and gen_ai.usage.input_tokens and output_tokens at least 1"
        )
    calls.sort()
    start_s, end_s, prompts, outputs, sessions = map(list, zip(*calls, strict=True))
    return {
        "prompt_tokens": np.array(prompts),
        "output_tokens": np.array(outputs),
        "session_id": np.array(sessions, object),
        "arrival_s": np.array(start_s) - start_s[0],
        "think_s": thinking_between(sessions, np.array(start_s), np.array(end_s)),
    }


def _spans(resources: Any) -> list[dict[str, Any]]:
    """Return the spans of a message's ``resourceSpans``, whatever emitted them."""
    scopes = [scope for each in _list(resources) for scope in _list(each.get("scopeSpans"))]
    return [span for scope in scopes for span in _list(scope.get("spans"))]


def _list(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _attributes(span: dict[str, Any]) -> dict[str, Any]:
    """Return a span's attributes by name, each value without its type."""
    return {
        str(each.get("key")): next(iter(each["value"].values()), None)
        for each in _list(span.get("attributes"))
        if isinstance(each.get("value"), dict)
    }

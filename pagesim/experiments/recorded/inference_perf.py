"""Reads inference-perf's ``per_request_lifecycle_metrics.json``: a list of requests, each with its times.

Source: inference-perf 0.7.0, reportgen/base.py, apis/base.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pagesim.errors import PagesimError, brief
from pagesim.experiments.recorded import fields
from pagesim.experiments.recorded.recording import RecordedRun
from pagesim.experiments.recorded.vllm_bench import failures


def fits(rows: object) -> bool:
    """Return whether a file's data may be such requests."""
    return (
        isinstance(rows, list)
        and bool(rows)
        and isinstance(rows[0], Mapping)
        and "start_time" in rows[0]
        and "info" in rows[0]
    )


def read(name: str, rows: Sequence[Any]) -> RecordedRun:
    """Return the run; requests were sent each at its own time.

    Args:
        name: of the file.
        rows: a request each.

    Raises:
        PagesimError: a field is missing, times contradict one another, or too many requests failed.
    """
    tables = [fields.table(row) for row in rows]
    notes = failures(name, np.array([row.get("error") is not None for row in tables]))
    good = [(number, row) for number, row in enumerate(tables) if row.get("error") is None]
    times, starts, prompt, output = [], [], [], []
    for number, row in good:
        info = fields.table(row.get("info"))
        answer = fields.table(info.get("response_metrics"))
        text = fields.table(fields.table(info.get("request_metrics")).get("text"))
        of = answer.get("output_token_times")
        if not isinstance(of, list) or not of or not all(fields.is_number(t, fields.INSTANT) for t in of):
            raise PagesimError(
                f"{name}: request {number}: output_token_times is {brief(of)}; times of tokens are "
                "needed: run inference-perf with streaming"
            )
        times.append(np.array(of, np.float64))
        starts.append(row.get("start_time"))
        prompt.append(text.get("input_tokens", info.get("input_tokens")))
        output.append(answer.get("output_tokens") or len(of))
    start = fields.seconds(name, "start_time", starts, fields.INSTANT)
    first, last = (np.array([of[at] for of in times]) for at in (0, -1))
    order = np.argsort(start, kind="stable")
    lengths = fields.tokens(name, "output_tokens", output, 1)[order].astype(np.int64)
    gaps = [np.diff(times[row]) for row in order]
    if any((each < 0).any() for each in gaps):
        raise PagesimError(
            f"{name}: output_token_times falls; times of a clock that never runs backwards are needed"
        )
    whole = all(len(each) == length - 1 for each, length in zip(gaps, lengths, strict=True))
    return RecordedRun(
        name,
        start[order] - start.min(),
        fields.tokens(name, "input_tokens", prompt, 1)[order].astype(np.int64),
        lengths,
        (first - start)[order],
        (last - start)[order],
        itl_s=gaps if whole else None,
        notes=notes,
    ).check()

"""Reads inference-perf's ``per_request_lifecycle_metrics.json``: a list of requests with their times.

Source: inference-perf 0.7.0, reportgen/base.py, apis/base.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import field_validator

from pagesim.experiments.recorded.layout import (
    Column,
    FileLayout,
    Instant,
    Tokens,
    TokensOrNone,
    at,
    parsed,
    table,
)
from pagesim.experiments.recorded.recording import RecordedRun


class _Request(FileLayout):
    start: Instant = at("start_time")
    times: Column[Instant] = at("info.response_metrics.output_token_times")
    prompt: Tokens = at("info.request_metrics.text.input_tokens", "info.input_tokens")
    counted: TokensOrNone | None = at("info.response_metrics.output_tokens", default=None)

    @field_validator("times")
    @classmethod
    def _rise(cls, times: list[float]) -> list[float]:
        if (np.diff(times) < 0).any():
            raise ValueError("times of a clock that never runs backwards are needed")
        return times

    @property
    def first(self) -> float:
        return self.times[0]

    @property
    def last(self) -> float:
        return self.times[-1]

    @property
    def output(self) -> float:
        return self.counted or len(self.times)

    @property
    def gaps(self) -> list[float]:
        return [float(gap) for gap in np.diff(self.times)]


def fits(data: object) -> bool:
    """Return whether a file's data looks like such requests."""
    return isinstance(data, list) and bool(data) and {"start_time", "info"} <= table(data[0]).keys()


def read(name: str, rows: Sequence[Any]) -> tuple[RecordedRun, ...]:
    """Return the run, with each request sent at its own time."""
    good = [number for number, row in enumerate(rows) if table(row).get("error") is None]
    hint = "run inference-perf with streaming"
    found = [parsed(_Request, name, rows[number], hint, row=number) for number in good]
    return (RecordedRun.of(name, found, failed=len(rows) - len(good)),)

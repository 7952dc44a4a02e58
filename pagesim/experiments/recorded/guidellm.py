"""Reads GuideLLM's ``benchmarks.json``: a run for each benchmark of a report.

Source: guidellm 0.8.1, schemas/base/request_stats.py, schemas/base/info.py, scheduler/strategies.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pagesim.errors import PagesimError, brief
from pagesim.experiments.recorded import fields
from pagesim.experiments.recorded.recording import RecordedRun
from pagesim.experiments.recorded.vllm_bench import failures

TIMES = ("request_start", "first_token_iteration", "last_token_iteration")
LENGTHS = ("prompt_tokens", "output_tokens")


def fits(data: object) -> bool:
    """Return whether a file's data may be such a report."""
    return isinstance(data, Mapping) and isinstance(data.get("benchmarks"), list)


def read(name: str, data: Mapping[str, Any]) -> tuple[RecordedRun, ...]:
    """Return the runs.

    Args:
        name: of the file.
        data: what it holds.

    Raises:
        PagesimError: a field is missing, times contradict one another, or too many requests failed.
    """
    reports = data["benchmarks"]
    if not reports:
        raise PagesimError(f"{name}: has no benchmark; let guidellm finish one")
    names = [name] if len(reports) == 1 else [f"{name}#{number}" for number in range(1, len(reports) + 1)]
    return tuple(_run(own, fields.table(each)) for own, each in zip(names, reports, strict=True))


def _run(name: str, report: Mapping[str, Any]) -> RecordedRun:
    requests = fields.table(report.get("requests"))
    rows = requests.get("successful")
    if not isinstance(rows, list) or not rows:
        raise PagesimError(
            f"{name}: requests.successful is {brief(rows)}; a list of requests that were answered is needed"
        )
    lost = sum(
        len(each) for kind in ("errored", "incomplete") if isinstance(each := requests.get(kind), list)
    )
    notes = failures(name, np.arange(len(rows) + lost) >= len(rows))
    columns: dict[str, list[Any]] = {field: [] for field in (*TIMES, *LENGTHS)}
    for number, row in enumerate(rows):
        timings = fields.table(fields.table(fields.table(row).get("info")).get("timings"))
        for field in (*TIMES, *LENGTHS):
            of = timings if field in TIMES else fields.table(row)
            if of.get(field) is None:
                raise PagesimError(
                    f"{name}: request {number}: has no {field}; run guidellm with streaming, and "
                    "keep all requests"
                )
            columns[field].append(of[field])
    start, first, last = (fields.seconds(name, field, columns[field], fields.INSTANT) for field in TIMES)
    prompt, output = (fields.tokens(name, field, columns[field], 1) for field in LENGTHS)
    order = np.argsort(start, kind="stable")
    strategy = fields.table(fields.table(report.get("config")).get("strategy"))
    return RecordedRun(
        name,
        start[order] - start.min(),
        prompt[order].astype(np.int64),
        output[order].astype(np.int64),
        (first - start)[order],
        (last - start)[order],
        max_concurrency=_clients(name, strategy, len(rows)),
        notes=notes,
    ).check()


def _clients(name: str, strategy: Mapping[str, Any], size: int) -> int | None:
    """Return how many requests were outstanding at most, where that decided when each was sent."""
    kind = strategy.get("type_")
    if kind == "synchronous":
        return 1
    field = {"concurrent": "streams", "throughput": "max_concurrency"}.get(str(kind))
    most: Any = None if field is None else strategy.get(field)
    if most is None:
        return None
    if not fields.is_number(most, 1e9, 1) or most % 1:
        raise PagesimError(f"{name}: {field} is {brief(most)}; a whole number from 1 is needed")
    return int(most) if most < size else None

"""Reads GuideLLM's ``benchmarks.json``, with one run per benchmark of the report.

Source: guidellm 0.8.1, schemas/base/request_stats.py, schemas/base/info.py, scheduler/strategies.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagesim.errors import PagesimError, brief
from pagesim.experiments.recorded.bench_server import server_of
from pagesim.experiments.recorded.layout import Count, FileLayout, Instant, Tokens, at, parsed, table
from pagesim.experiments.recorded.recording import RecordedRun

HINT = "run guidellm with streaming, and keep all requests"
CLIENTS = {"concurrent": "streams", "throughput": "max_concurrency"}
"""Field of a strategy that limits the number of outstanding requests, by the strategy's name."""


class _Request(FileLayout):
    start: Instant = at("info.timings.request_start")
    first: Instant = at("info.timings.first_token_iteration")
    last: Instant = at("info.timings.last_token_iteration")
    prompt: Tokens = at("prompt_tokens")
    output: Tokens = at("output_tokens")
    gaps: None = None


class _Strategy(FileLayout):
    type_: str | None = None
    streams: Count | None = None
    max_concurrency: Count | None = None


def fits(data: object) -> bool:
    """Return whether a file's data looks like such a report."""
    return isinstance(table(data).get("benchmarks"), list)


def read(name: str, data: Mapping[str, Any]) -> tuple[RecordedRun, ...]:
    """Return the runs of a report, one per benchmark."""
    if not (reports := data["benchmarks"]):
        raise PagesimError(f"{name}: has no benchmark; let guidellm finish one")
    server = server_of(name, data)
    names = [name] if len(reports) == 1 else [f"{name}#{number}" for number in range(1, len(reports) + 1)]
    return tuple(_run(own, table(each), server) for own, each in zip(names, reports, strict=True))


def _run(name: str, report: Mapping[str, Any], server: Mapping[str, Any]) -> RecordedRun:
    requests = table(report.get("requests"))
    rows = requests.get("successful")
    if not isinstance(rows, list) or not rows:
        raise PagesimError(
            f"{name}: requests.successful is {brief(rows)}; a list of requests that were answered is needed"
        )
    lost = [each for kind in ("errored", "incomplete") if isinstance(each := requests.get(kind), list)]
    strategy = parsed(_Strategy, name, table(table(report.get("config")).get("strategy")))
    clients = getattr(strategy, CLIENTS.get(str(strategy.type_), ""), None)
    return RecordedRun.of(
        name,
        [parsed(_Request, name, row, HINT, row=number) for number, row in enumerate(rows)],
        failed=sum(map(len, lost)),
        max_concurrency=1 if strategy.type_ == "synchronous" else clients,
        server=server,
    )

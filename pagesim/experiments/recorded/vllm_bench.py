"""Reads the output of ``vllm bench serve --save-result --save-detailed``: a load as its client measured it.

SGLang's bench with ``--output-details`` has the same lists. Source: vLLM 0.19.0, vllm/benchmarks/serve.py.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import model_validator

from pagesim.errors import PagesimError, brief
from pagesim.experiments.recorded.bench_server import server_of
from pagesim.experiments.recorded.layout import (
    Amount,
    Column,
    Count,
    Duration,
    FileLayout,
    Instant,
    TokensOrNone,
    at,
    parsed,
)
from pagesim.experiments.recorded.recording import Answered, Floats, RecordedRun

LISTS = ("input_lens", "output_lens", "ttfts", "itls")

AGREE = 0.1
"""Relative deviation allowed between the lists and the file's own summary."""


DETAILED = (
    "keep the times of single requests: run vllm bench serve with --save-result --save-detailed, SGLang's "
    "bench with --output-details"
)


class _Lists(FileLayout):
    ttfts: Column[Duration]
    itls: Column[list[Duration]]
    input_lens: Column[TokensOrNone]
    output_lens: Column[TokensOrNone]
    errors: list[Any] | None = None
    start_times: Column[Instant] | None = None
    max_concurrency: Count | None = None
    request_rate: Any = "inf"
    duration: Amount | None = None
    mean_ttft_ms: Amount | None = None
    mean_tpot_ms: Amount | None = None
    mean_e2el_ms: Amount | None = at("mean_e2el_ms", "mean_e2e_latency_ms", default=None)

    @model_validator(mode="after")
    def _a_value_a_request(self) -> _Lists:
        size = len(self.ttfts)
        for name in ("itls", "input_lens", "output_lens", "errors", "start_times"):
            values = getattr(self, name)
            if values and len(values) != size:
                raise ValueError(
                    f"{name} has {len(values)} values, and ttfts has {size}; one a request is needed"
                )
        return self

    @property
    def at_once(self) -> bool:
        """Whether requests are sent as soon as possible."""
        return self.request_rate in ("inf", None)


def fits(data: object) -> bool:
    """Return whether a file's data looks like such a result."""
    return isinstance(data, Mapping) and any(name in data for name in LISTS)


def read(name: str, data: Mapping[str, Any]) -> tuple[RecordedRun, ...]:
    """Return the run, with requests sent at recorded times or as by the clients of a closed loop."""
    found = parsed(_Lists, name, data, DETAILED)
    size = len(found.ttfts)
    most = found.max_concurrency if found.at_once else None
    most = None if most is None or most >= size else most
    ttft, prompt, output = (np.array(each) for each in (found.ttfts, found.input_lens, found.output_lens))
    decode = np.array([math.fsum(each) for each in found.itls])
    arrival = _arrivals(name, found, ttft + decode, most)
    good = (output >= 1) & (prompt >= 1)
    if found.errors:
        good &= ~np.array([bool(each) for each in found.errors])
    rows = np.flatnonzero(good).tolist()
    first = arrival + ttft
    last = first + decode
    run = RecordedRun.of(
        name,
        [
            Answered(arrival[row], first[row], last[row], prompt[row], output[row], found.itls[row])
            for row in rows
        ],
        failed=int((~good).sum()),
        max_concurrency=most,
        server=server_of(name, data),
        notes=_chunks(name, np.array([len(found.itls[row]) for row in rows]), output[good]),
    )
    e2e, closed = ttft + decode, most is not None and found.start_times is not None
    order = np.argsort(arrival, kind="stable")
    _check(name, found, run, float(_sent(e2e[order], int(most))[-1]) if closed and most else None)
    return (run,)


def _arrivals(name: str, found: _Lists, e2e: Floats, most: float | None) -> Floats:
    """Return when each request was sent: as recorded, as by closed-loop clients, or all at once."""
    if found.start_times is not None:
        return np.array(found.start_times) - min(found.start_times)
    if most is not None:
        return _sent(e2e, int(most))
    if not found.at_once:
        raise PagesimError(
            f"{name}: has no start_times, and request_rate is {brief(found.request_rate)}: when requests "
            "were sent is not known; use a newer vllm bench serve, or --max-concurrency with --request-rate "
            "inf"
        )
    return np.zeros(len(e2e))


def _sent(e2e: Floats, most: int) -> Floats:
    """Return when this many clients sent each request, if each sends its next one when its last finishes."""
    free = [0.0] * most
    sent = np.empty(len(e2e))
    for row, seconds in enumerate(e2e.tolist()):
        sent[row] = heapq.heappop(free)
        heapq.heappush(free, sent[row] + seconds)
    return sent


def _check(name: str, found: _Lists, run: RecordedRun, sent: float | None) -> None:
    """Reject lists that contradict the file's own summary.

    Args:
        name: name of the file.
        found: contents of the file.
        run: the answered requests.
        sent: when closed-loop clients sent the last request, according to the gaps; None if unknown.
    """
    several = run.output_tokens > 1
    tpot = (run.e2e_s - run.ttft_s)[several] / (run.output_tokens[several] - 1)
    starts = 0.0 if found.start_times is None else max(found.start_times) - min(found.start_times)
    for field, said, own in (
        ("mean_ttft_ms", found.mean_ttft_ms, 1e3 * run.ttft_s.mean()),
        ("mean_tpot_ms", found.mean_tpot_ms, 1e3 * tpot.mean() if several.any() else None),
        ("mean_e2el_ms", found.mean_e2el_ms, 1e3 * run.e2e_s.mean()),
        ("duration", found.duration, run.last_s.max()),
        ("last of start_times", starts, sent),
    ):
        if own is not None and said and abs(own / said - 1) > AGREE:
            raise PagesimError(
                f"{name}: its {field} is {said:.6g}, and by ttfts, itls and output_lens it is {own:.6g}, "
                f"{own / said:.2f} times that: the lists are not whole, or not in seconds; save the run again"
            )


def _chunks(name: str, gaps: Floats, output: Floats) -> tuple[str, ...]:
    """Return a note if gaps and tokens do not correspond."""
    several = output > 1
    ratio = float(np.median(gaps[several] / (output[several] - 1))) if several.any() else 1.0
    if abs(ratio - 1) <= AGREE:
        return ()
    return (
        f"{name}: itls has {ratio:.2f} gaps a token: its client counted chunks without a token, or several "
        "tokens a chunk; times from the first to the last token are used, which do not depend on that",
    )

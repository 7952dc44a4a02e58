"""Reads what ``vllm bench serve --save-result --save-detailed`` writes: a load, as its client measured it.

Source: vLLM 0.19.0, vllm/benchmarks/serve.py.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from pagesim.errors import PagesimError, brief
from pagesim.experiments.fit.loads import Floats, Load, Rows

LISTS = ("input_lens", "output_lens", "ttfts", "itls")
MOST_FAILED = 0.1
"""Share of requests that may have failed: the server worked for these, too, the log does not say how long."""

AGREE = 0.1
"""Share by which gaps may miss what the file's own summary says."""


def fits(data: object) -> bool:
    """Return whether a file's data may be such a result."""
    return isinstance(data, Mapping) and ("completed" in data or "ttfts" in data or "mean_ttft_ms" in data)


def read(name: str, data: Mapping[str, Any]) -> Load:
    """Return the load.

    Args:
        name: of the file.
        data: what it holds.

    Raises:
        PagesimError: a field is missing, times contradict one another, or too many requests failed.
    """
    if missing := [field for field in LISTS if field not in data]:
        raise PagesimError(
            f"{name}: has no {missing[0]}; run vllm bench serve with --save-result --save-detailed, which "
            "keeps the times of single requests"
        )
    size = len(_list(name, data, "ttfts"))
    prompt, output = (_column(name, data, field, size) for field in ("input_lens", "output_lens"))
    ttft = _column(name, data, "ttfts", size)
    gaps = _gaps(name, data, size)
    decode = np.array([math.fsum(each) for each in gaps])
    errors = data.get("errors") or [""] * size
    failed = np.array([bool(each) for each in errors]) | (output < 1) | (prompt < 1)
    notes = _failures(name, failed)
    started = data.get("start_times")
    rate: Any = data.get("request_rate", "inf")
    most: Any = data.get("max_concurrency")
    at_once = rate in ("inf", None) or not math.isfinite(float(rate))
    closed = at_once and most is not None and most < size
    if started is not None:
        arrival = _column(name, data, "start_times", size)
        arrival = arrival - arrival.min(initial=np.inf)
    elif closed:
        arrival = _sent(ttft + decode, int(most))
    elif at_once:
        arrival = np.zeros(size)
    else:
        raise PagesimError(
            f"{name}: has no start_times, and request_rate is {brief(rate)}: when requests were sent is not "
            "known; use a newer vllm bench serve, or --max-concurrency with --request-rate inf"
        )
    good = ~failed
    _check_gaps(name, data, ttft[good], decode[good], output[good], arrival[good])
    if closed and started is not None:
        _check_starts(name, arrival, ttft + decode, int(most))
    notes += _chunks(name, np.array([len(each) for each in gaps])[good], output[good])
    order = np.flatnonzero(good)[np.argsort(arrival[good], kind="stable")]
    arrival, ttft, decode = arrival[order], ttft[order], decode[order]
    load = Load(
        name,
        arrival,
        prompt[order].astype(np.int64),
        output[order].astype(np.int64),
        arrival + ttft,
        arrival + ttft + decode,
        max_concurrency=int(most) if closed else None,
        notes=notes,
    )
    load.check()
    return load


def _list(name: str, data: Mapping[str, Any], field: str) -> list[Any]:
    value = data[field]
    if not isinstance(value, list) or not value:
        raise PagesimError(f"{name}: {field} is {brief(value)}; a list with a value a request is needed")
    return value


def _column(name: str, data: Mapping[str, Any], field: str, size: int) -> Floats:
    """Return a list of numbers that are not negative as a column, ``[size]``."""
    values = _list(name, data, field)
    if len(values) != size:
        raise PagesimError(
            f"{name}: {field} has {len(values)} values, and ttfts has {size}; one a request is needed"
        )
    for row, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise PagesimError(
                f"{name}: request {row}: {field} is {brief(value)}; a number from 0 is needed: times of a "
                "clock that never runs backwards"
            )
    return np.array(values, np.float64)


def _gaps(name: str, data: Mapping[str, Any], size: int) -> list[list[float]]:
    """Return the gaps between tokens of each request."""
    gaps = _list(name, data, "itls")
    if len(gaps) != size:
        raise PagesimError(
            f"{name}: itls has {len(gaps)} lists, and ttfts has {size}; one a request is needed"
        )
    for row, each in enumerate(gaps):
        if not isinstance(each, list) or any(
            isinstance(gap, bool) or not isinstance(gap, int | float) or gap < 0 for gap in each
        ):
            raise PagesimError(
                f"{name}: request {row}: itls is {brief(each)}; a list of seconds from 0 is needed: times of "
                "a clock that never runs backwards"
            )
    return gaps


def _failures(name: str, failed: Rows) -> tuple[str, ...]:
    count = int(failed.sum())
    if count > MOST_FAILED * len(failed):
        raise PagesimError(
            f"{name}: {count} of {len(failed)} requests failed; at most {MOST_FAILED:.0%} may: how much of "
            "the server's time they took is not known. Run the load again"
        )
    return (f"{name}: {count} of {len(failed)} requests failed and are left out",) if count else ()


def _sent(e2e: Floats, most: int) -> Floats:
    """Return when each request was sent by so many clients, each sending the next when its last is over."""
    free = [0.0] * most
    sent = np.empty(len(e2e))
    for row, seconds in enumerate(e2e.tolist()):
        sent[row] = heapq.heappop(free)
        heapq.heappush(free, sent[row] + seconds)
    return sent


def _check_gaps(
    name: str, data: Mapping[str, Any], ttft: Floats, decode: Floats, output: Floats, arrival: Floats
) -> None:
    """Refuse gaps that do not sum to what the file's own summary says."""
    several = output > 1
    found = {
        "mean_ttft_ms": 1e3 * ttft.mean(),
        "mean_tpot_ms": 1e3 * (decode[several] / (output[several] - 1)).mean() if several.any() else None,
        "mean_e2el_ms": 1e3 * (ttft + decode).mean(),
        "duration": float((arrival + ttft + decode).max()),
    }
    for field, own in found.items():
        said = data.get(field)
        if own is None or isinstance(said, bool) or not isinstance(said, int | float) or not said > 0:
            continue
        if abs(own / said - 1) > AGREE:
            raise PagesimError(
                f"{name}: its {field} is {said:.6g}, and by ttfts, itls and output_lens it is {own:.6g}, "
                f"{own / said:.2f} times that: the lists are not whole, or not in seconds; save the run again"
            )


def _check_starts(name: str, arrival: Floats, e2e: Floats, most: int) -> None:
    """Refuse requests of a closed loop that were not sent when others were over."""
    order = np.argsort(arrival, kind="stable")
    own, said = float(_sent(e2e[order], most)[-1]), float(arrival.max())
    if said > 0 and abs(own / said - 1) > AGREE:
        raise PagesimError(
            f"{name}: {most} clients sent the last request after {said:.6g} s by start_times, and after "
            f"{own:.6g} s by ttfts and itls: the lists are not whole, or not in seconds; save the run again"
        )


def _chunks(name: str, gaps: Floats, output: Floats) -> tuple[str, ...]:
    """Return what to know where a gap is not a token."""
    several = output > 1
    ratio = float(np.median(gaps[several] / (output[several] - 1))) if several.any() else 1.0
    if abs(ratio - 1) <= AGREE:
        return ()
    return (
        f"{name}: itls has {ratio:.2f} gaps a token: its client counted chunks without a token, or several "
        "tokens a chunk; times from the first to the last token are used, which do not depend on that",
    )

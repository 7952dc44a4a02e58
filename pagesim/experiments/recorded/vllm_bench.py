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
from pagesim.experiments.recorded import fields
from pagesim.experiments.recorded.recording import Floats, RecordedRun, Rows
from pagesim.sim.clock import LONGEST_S

LISTS = ("input_lens", "output_lens", "ttfts", "itls")
MOST_FAILED = 0.1
"""Share of requests that may have failed: the server worked for these, too, the log does not say how long."""

AGREE = 0.1
"""Share by which gaps may miss what the file's own summary says."""


def fits(data: object) -> bool:
    """Return whether a file's data may be such a result."""
    return isinstance(data, Mapping) and ("completed" in data or "ttfts" in data or "mean_ttft_ms" in data)


def read(name: str, data: Mapping[str, Any]) -> RecordedRun:
    """Return the run.

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
    columns = {field: _list(name, data, field, size) for field in LISTS}
    prompt, output = (fields.tokens(name, field, columns[field], 0) for field in LISTS[:2])
    ttft = fields.seconds(name, "ttfts", columns["ttfts"])
    gaps = _gaps(name, columns["itls"])
    decode = np.array([math.fsum(each) for each in gaps])
    errors = _list(name, data, "errors", size) if data.get("errors") else [""] * size
    failed = np.array([bool(each) for each in errors]) | (output < 1) | (prompt < 1)
    notes = failures(name, failed)
    most = _clients(name, data, size)
    if "start_times" in data:
        arrival = fields.seconds(name, "start_times", _list(name, data, "start_times", size), fields.INSTANT)
        arrival = arrival - arrival.min()
    elif most is not None:
        arrival = _sent(ttft + decode, most)
    elif _at_once(data):
        arrival = np.zeros(size)
    else:
        rate = brief(data["request_rate"])
        raise PagesimError(
            f"{name}: has no start_times, and request_rate is {rate}: when requests were sent is not known; "
            "use a newer vllm bench serve, or --max-concurrency with --request-rate inf"
        )
    good = ~failed
    _check_gaps(name, data, ttft[good], decode[good], output[good], arrival[good])
    if most is not None and "start_times" in data:
        _check_starts(name, arrival, ttft + decode, most)
    notes += _chunks(name, np.array([len(each) for each in gaps])[good], output[good])
    order = np.flatnonzero(good)[np.argsort(arrival[good], kind="stable")]
    arrival, ttft, decode = arrival[order], ttft[order], decode[order]
    whole = _whole_gaps(gaps, order, output)
    return RecordedRun(
        name,
        arrival,
        prompt[order].astype(np.int64),
        output[order].astype(np.int64),
        ttft,
        ttft + decode,
        itl_s=whole,
        max_concurrency=most,
        server={"model": data["model_id"]} if isinstance(data.get("model_id"), str) else {},
        notes=notes,
    ).check()


def _whole_gaps(gaps: list[list[float]], order: Any, output: Floats) -> list[Floats] | None:
    """Return the gaps between tokens of these requests; None where a gap is not a token."""
    if any(len(gaps[row]) != output[row] - 1 for row in order):
        return None
    return [np.array(gaps[row], np.float64) for row in order]


def _list(name: str, data: Mapping[str, Any], field: str, size: int | None = None) -> list[Any]:
    """Return a list with a value a request."""
    value = data[field]
    if not isinstance(value, list) or not value:
        raise PagesimError(f"{name}: {field} is {brief(value)}; a list with a value a request is needed")
    if size is not None and len(value) != size:
        raise PagesimError(
            f"{name}: {field} has {len(value)} values, and ttfts has {size}; one a request is needed"
        )
    return value


def _gaps(name: str, lists: list[Any]) -> list[list[float]]:
    """Return the gaps between tokens of each request."""
    for row, each in enumerate(lists):
        if not isinstance(each, list) or not all(fields.is_number(gap, LONGEST_S) for gap in each):
            raise PagesimError(
                f"{name}: request {row}: itls is {brief(each)}; a list of seconds from 0 is needed: times of "
                "a clock that never runs backwards"
            )
    return lists


def _at_once(data: Mapping[str, Any]) -> bool:
    """Return whether requests are sent as soon as they may be."""
    return data.get("request_rate", "inf") in ("inf", None)


def _clients(name: str, data: Mapping[str, Any], size: int) -> int | None:
    """Return how many requests were outstanding at most, where that decided when each was sent."""
    most = data.get("max_concurrency")
    if most is None or not _at_once(data):
        return None
    if not fields.is_number(most, 1e9, 1) or most % 1:
        raise PagesimError(f"{name}: max_concurrency is {brief(most)}; a whole number from 1 is needed")
    return int(most) if most < size else None


def failures(name: str, failed: Rows) -> tuple[str, ...]:
    """Return a note on requests that failed, none if there are none.

    Raises:
        PagesimError: more than ``MOST_FAILED`` of them did.
    """
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
        "mean_e2e_latency_ms": 1e3 * (ttft + decode).mean(),
        "duration": float((arrival + ttft + decode).max()),
    }
    for field, own in found.items():
        said: Any = data.get(field)
        if own is None or not fields.is_number(said, 1e3 * LONGEST_S, 1e-9):
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

"""When requests arrive: processes that give times, and how the requests of a trace are put on them."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np

from pagesim.errors import PagesimError
from pagesim.workloads.files import NO_ARRIVALS, has_recorded_arrivals
from pagesim.workloads.trace import FloatColumn, IntColumn, Trace

ArrivalKind = Literal["recorded", "replay", "poisson", "gamma", "constant", "all-at-once", "sosp"]

KINDS: dict[str, str] = {
    "recorded": "as the trace recorded them",
    "replay": "the recorded ones, sped up or slowed down to a rate",
    "poisson": "independent, at a rate",
    "gamma": "gaps drawn from a gamma distribution, at a rate and with a CV (1 is poisson, more is burstier)",
    "constant": "evenly spaced, at a rate, the first at 0 s",
    "all-at-once": "every request at 0 s",
    "sosp": "the PagedAttention paper's own generator, at a rate for a duration",
}
"""Name of each arrival process, and what it does."""

NEEDS: dict[str, tuple[str, ...]] = {
    "replay": ("rate",),
    "poisson": ("rate",),
    "gamma": ("rate", "cv"),
    "constant": ("rate",),
    "sosp": ("rate", "duration"),
}
ALLOWS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("recorded", "replay", "poisson", "gamma", "constant"), ("duration", "num_requests")),
    "all-at-once": ("num_requests",),
}

CHUNK = 1 << 16
"""Gaps drawn at a time: the stream, and so a trace, does not depend on how many are wanted."""

MAX_REQUESTS = 10_000_000
"""More requests than this in one trace is taken for a mistake."""

BOUNDS = {"rate": (1e-6, 1e6), "cv": (1e-3, 100.0), "duration": (1e-3, 1e6)}
"""What a rate in requests/s, a CV, and a duration in s may be; outside it is taken for a mistake."""

SOSP_TICK_S = 10 / 1000
SOSP_TOTAL_BELOW = 2048


def arrive(
    trace: Trace,
    kind: ArrivalKind,
    *,
    rate: float | None = None,
    cv: float | None = None,
    duration: float | None = None,
    num_requests: int | None = None,
    seed: int = 0,
) -> Trace:
    """Give a trace's requests new arrival times.

    The times are drawn first; then requests are taken from the trace in its order, one a time. Where there
    are more times than requests, the trace is repeated from its start: ids are then the row numbers, a
    repeated conversation is a new session, and a repeated prompt keeps its ``hash_ids``. ``sosp`` first
    keeps the requests with prompt + output below 2048 tokens, and shuffles those that it took; the turns of
    a conversation then take the places that the shuffle gave to any of them in their own order. So the turns
    of every session arrive in order, whatever the process. Clients that go away do so as long after their
    request's arrival as before.

    Args:
        trace: the requests.
        kind: one of ``KINDS``.
        rate: mean arrivals a second; for replay, poisson, gamma, constant and sosp.
        cv: coefficient of variation of the gaps between arrivals; for gamma.
        duration: only arrivals before this many seconds; for all but all-at-once.
        num_requests: at most so many requests; for all but sosp. Without it and without a duration, each
            request of the trace arrives once.
        seed: of the random numbers; the same seed gives the same trace in any process.

    Returns:
        The trace with new times, and a note that names the process. Recorded arrivals and replay never
        repeat the trace: they end where it ends.

    Raises:
        PagesimError: an option is missing, not used by this process, or out of bounds; or no request is left.
    """
    options = {"rate": rate, "cv": cv, "duration": duration, "num_requests": num_requests}
    check_options(kind, options)
    check_seed(seed)
    if not len(trace):
        raise PagesimError("the trace has no requests to give arrival times to")
    if kind in ("recorded", "replay"):
        return _recorded(trace, rate, duration, num_requests)
    if kind == "sosp" and rate is not None and duration is not None:
        return _sosp(trace, rate, duration, seed)
    if duration is None and num_requests is None:
        num_requests = len(trace)
    times = arrival_times(kind, rate=rate, cv=cv, duration=duration, num_requests=num_requests, seed=seed)
    given = ", ".join(f"{name} {value:.10g}" for name, value in options.items() if value is not None)
    return placed(trace, times, f"arrivals: {kind}{', ' if given else ''}{given}, seed {seed}")


def arrival_times(
    kind: str,
    *,
    rate: float | None = None,
    cv: float | None = None,
    duration: float | None = None,
    num_requests: int | None = None,
    seed: int = 0,
) -> FloatColumn:
    """Return the times of a process that needs no trace, in seconds from 0, ascending, ``[N]``.

    Arguments are as for ``arrive``, of which this is the first half; duration or num_requests must be given.

    Raises:
        PagesimError: an option is missing, not used by this process, or out of bounds; or nothing arrives.
    """
    check_options(kind, {"rate": rate, "cv": cv, "duration": duration, "num_requests": num_requests})
    check_seed(seed)
    if kind == "all-at-once":
        return np.zeros(num_requests or 0)
    if rate is None or kind in ("recorded", "replay"):
        raise PagesimError(f"arrivals {kind} need a trace that recorded them")
    if kind == "sosp" and duration is not None:
        return _sosp_times(rate, duration, seed)[0]
    if num_requests is None and duration is None:
        raise PagesimError(f"arrivals {kind} need a duration or a number of requests")
    expected = min(num_requests or np.inf, rate * (duration or np.inf))
    _check_count(expected)
    if kind == "constant":
        times = np.arange(int(np.ceil(expected)) + 1) / rate
    else:
        times = _renewals(rate, cv or 1.0, duration, num_requests, seed)
    if duration is not None:
        times = times[times < duration]
    if not len(times):
        raise _nothing_arrives(rate, duration)
    return times[:num_requests]


def check_options(kind: str, options: dict[str, Any]) -> None:
    """Raise PagesimError when an arrival process lacks an option, or has one that it cannot use."""
    if kind not in get_args(ArrivalKind):
        raise PagesimError(f"arrivals {kind!r} are unknown; choose one of {', '.join(KINDS)}")
    needs, allows = NEEDS.get(kind, ()), ALLOWS.get(kind, ())
    for name, value in options.items():
        if value is None:
            if name in needs:
                raise PagesimError(f"arrivals {kind} need a {name}")
        elif name not in (*needs, *allows):
            users = ", ".join(k for k in KINDS if name in (*NEEDS.get(k, ()), *ALLOWS.get(k, ())))
            raise PagesimError(f"arrivals {kind} take no {name}; leave it out, or choose one of {users}")
        elif name == "num_requests":
            if not 1 <= value <= MAX_REQUESTS or value != int(value):
                raise PagesimError(
                    f"num_requests is {value}; it must be a whole number from 1 to {MAX_REQUESTS}"
                )
        elif not BOUNDS[name][0] <= value <= BOUNDS[name][1]:
            low, high = BOUNDS[name]
            raise PagesimError(f"{name} is {value:g}; it must be a number from {low:g} to {high:g}")


def check_seed(seed: int) -> None:
    """Raise PagesimError when a seed is negative, which no generator takes."""
    if seed < 0:
        raise PagesimError(f"seed is {seed}; it must be a whole number from 0")


def arrival_rate(arrival_s: FloatColumn) -> float | None:
    """Return the mean arrivals a second, one over the mean gap; None where all arrive together.

    Args:
        arrival_s: when requests arrive, in order, ``[N]``.
    """
    if len(arrival_s) < 2 or arrival_s[-1] == arrival_s[0]:
        return None
    return float((len(arrival_s) - 1) / (arrival_s[-1] - arrival_s[0]))


def gap_cv(arrival_s: FloatColumn) -> float | None:
    """Return the coefficient of variation of the gaps between arrivals; None where all arrive together.

    Args:
        arrival_s: when requests arrive, in order, ``[N]``.
    """
    gaps = np.diff(arrival_s)
    if not len(gaps) or gaps.mean() == 0:
        return None
    return float(gaps.std() / gaps.mean())


def _nothing_arrives(rate: float, duration: float | None) -> PagesimError:
    return PagesimError(f"nothing arrives within {duration:g} s at {rate:g} requests/s; give more of either")


def _check_count(expected: float) -> None:
    if expected > MAX_REQUESTS:
        raise PagesimError(f"rate and duration ask for {expected:.3g} requests; the bound is {MAX_REQUESTS}")


def _renewals(
    rate: float, cv: float, duration: float | None, num_requests: int | None, seed: int
) -> FloatColumn:
    """Return the times of a renewal process up to the duration or the number of requests, and some beyond."""
    rng = np.random.default_rng(seed)
    times = np.empty(0)
    last = 0.0
    while (duration is None or last < duration) and (num_requests is None or len(times) < num_requests):
        _check_count(len(times))
        gaps = rng.exponential(1 / rate, CHUNK) if cv == 1 else rng.gamma(cv**-2, cv**2 / rate, CHUNK)
        times = np.concatenate([times, last + np.cumsum(gaps)])
        last = times[-1]
    return times


def placed(trace: Trace, times: FloatColumn, note: str, source: IntColumn | None = None) -> Trace:
    """Return the trace whose request ``k`` is ``source[k]`` of this one, or ``k``, at ``times[k]``.

    Args:
        trace: is repeated: ``source`` counts on from one repetition to the next.
        times: seconds, rising, ``[N]``.
        note: how they came about.
        source: ``[N]``.
    """
    size = len(trace)
    taken = np.arange(len(times)) if source is None else source
    row = taken % size
    repeated = bool(len(taken) and taken.max() >= size)
    keep_ids = source is None and not repeated
    session = trace.session_id
    if session is not None:
        session = session[row]
        if repeated:
            session = _conversations(trace, taken)
    changes = {
        **trace.columns_at(row),
        "arrival_s": times,
        "session_id": session,
        "notes": (*(n for n in trace.notes if n != NO_ARRIVALS), note),
    }
    if not keep_ids:
        changes["request_id"] = np.arange(len(taken))
    if trace.abort_s is not None:
        changes["abort_s"] = trace.abort_s[row] - trace.arrival_s[row] + times
    return replace(trace, **changes)


def numbered_sessions(trace: Trace) -> IntColumn:
    """Return each request's session as a number from 0; one without a session is a session of its own."""
    if trace.session_id is None:
        return np.arange(len(trace))
    seen: dict[object, int] = {}
    sessions = enumerate(trace.session_id.tolist())
    return np.array([seen.setdefault((row,) if s is None else s, len(seen)) for row, s in sessions], np.int64)


def _conversations(trace: Trace, taken: IntColumn) -> IntColumn:
    """Return the session of each request taken, as a number; each repetition of the trace has its own."""
    number = numbered_sessions(trace)
    return taken // len(trace) * (int(number.max()) + 1) + number[taken % len(trace)]


def _rounds_in_order(trace: Trace, taken: IntColumn) -> IntColumn:
    """Return the requests taken with the turns of each conversation in order, at the places they had."""
    conversation = _conversations(trace, taken)
    ordered = np.empty_like(taken)
    ordered[np.argsort(conversation, kind="stable")] = taken[np.lexsort((taken, conversation))]
    return ordered


def _recorded(trace: Trace, rate: float | None, duration: float | None, num_requests: int | None) -> Trace:
    if not has_recorded_arrivals(trace):
        raise PagesimError(
            "the trace has no recorded arrivals; choose all-at-once, or poisson or gamma with a rate"
        )
    times, note = trace.arrival_s, "arrivals: as recorded"
    if rate is not None:
        recorded = arrival_rate(times)
        if recorded is None:
            raise PagesimError("the recorded arrivals are all at one time, so they have no rate to scale")
        times = (times - times[0]) * (recorded / rate)
        note = f"arrivals: as recorded, scaled from {recorded:.4g} to {rate:g} requests/s"
    count = len(times) if duration is None else int(np.searchsorted(times, duration))
    if num_requests is not None:
        if num_requests > len(trace):
            raise PagesimError(
                f"num_requests is {num_requests}; the trace has {len(trace)} recorded arrivals"
            )
        count = min(count, num_requests)
    if not count:
        raise PagesimError(f"no recorded arrival is before {duration:g} s; the first is at {times[0]:g} s")
    return placed(trace, times[:count], note)


def _sosp(trace: Trace, rate: float, duration: float, seed: int) -> Trace:
    times, shuffler = _sosp_times(rate, duration, seed)
    fits = np.flatnonzero(trace.prompt_tokens + trace.output_tokens < SOSP_TOTAL_BELOW)
    if not len(fits):
        raise PagesimError(
            f"arrivals sosp keep requests below {SOSP_TOTAL_BELOW} tokens in all; the trace has none"
        )
    kept = trace.take(fits)
    shuffled = list(range(len(times)))
    shuffler.shuffle(shuffled)
    order = np.array(shuffled)
    note = f"arrivals: sosp (the paper's generator), rate {rate:g}, duration {duration:g}, seed {seed}"
    if len(fits) < len(trace):
        left_out = f"{len(trace) - len(fits)} of {len(trace)} requests"
        note += f"; {left_out} have {SOSP_TOTAL_BELOW} tokens or more and are left out"
    if trace.session_id is not None:
        order = _rounds_in_order(kept, order)
        note += "; the turns of a conversation keep their order"
    return placed(kept, times, note, order)


def _sosp_times(rate: float, duration: float, seed: int) -> tuple[FloatColumn, random.Random]:
    """Return the arrivals, multiples of 10 ms, and the generator that shuffles the requests.

    The artifact seeds the global generators of ``random`` and numpy's legacy interface; private ones give
    the same.
    """
    _check_count(rate * duration)
    if seed >= 2**32:
        raise PagesimError(f"seed is {seed}; arrivals sosp take one from 0 to {2**32 - 1}")
    legacy = np.random.RandomState(seed)  # the paper's stream is the legacy one
    counts = legacy.poisson(lam=rate * SOSP_TICK_S, size=int(duration * 100))
    times = np.repeat(np.arange(len(counts)) * SOSP_TICK_S, counts)
    if not len(times):
        raise _nothing_arrives(rate, duration)
    return times, random.Random(seed)

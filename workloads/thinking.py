"""Turns after completion: how long clients think between two turns, and when conversations begin."""

from __future__ import annotations

import numpy as np

from pagesim.errors import PagesimError
from pagesim.workloads.arrivals import (
    ArrivalKind,
    arrival_times,
    arrive,
    check_seed,
    numbered_sessions,
    placed,
)
from pagesim.workloads.trace import MAX_THINK_S, IntColumn, Trace
from pagesim.workloads.values import number

THINKING = ("constant", "exponential")
"""Distributions of the time between two turns."""


def parse_think(text: str) -> tuple[str, float]:
    """Return the distribution of the time between two turns, and its mean in seconds.

    Args:
        text: ``SECONDS`` or ``constant:SECONDS``, or ``exponential:SECONDS``.

    Raises:
        PagesimError: the text is not so written, or the mean is not 0 to ``MAX_THINK_S``.
    """
    kind, colon, mean = text.partition(":")
    if not colon:
        kind, mean = "constant", text
    seconds = number(mean)
    if kind not in THINKING or not 0 <= seconds <= MAX_THINK_S:
        raise PagesimError(
            "must be SECONDS, constant:SECONDS or exponential:SECONDS, such as exponential:5: "
            f"a number from 0 to {MAX_THINK_S:g}"
        )
    return kind, seconds


def think(trace: Trace, thinking: str, seed: int = 0) -> Trace:
    """Let the later turns of every session be sent when the last one is over and the client has thought.

    Args:
        trace: the requests, with sessions.
        thinking: as ``parse_think`` takes.
        seed: of what is drawn; arrivals and lengths drawn with the same seed do not depend on this.

    Returns:
        The trace with ``think_s``, and a note.

    Raises:
        PagesimError: the text is no such distribution, or the trace has no sessions.
    """
    try:
        kind, mean = parse_think(thinking)
    except PagesimError as error:
        raise PagesimError(f"think is {thinking!r}: {error}") from None
    check_seed(seed)
    if trace.session_id is None:
        raise PagesimError(f"think is {thinking!r}, but the trace has no sessions whose turns it is between")
    if kind == "constant":
        times = np.full(len(trace), mean)
    else:
        times = np.minimum(np.random.default_rng([seed, 3]).exponential(mean, len(trace)), MAX_THINK_S)
    note = f"between two turns: {kind}, mean {mean:g} s" + ("" if kind == "constant" else f", seed {seed}")
    return trace.with_columns({"think_s": times}, note)


def begin_sessions(
    trace: Trace,
    kind: ArrivalKind,
    *,
    rate: float | None = None,
    cv: float | None = None,
    duration: float | None = None,
    num_requests: int | None = None,
    seed: int = 0,
) -> Trace:
    """Give the sessions of a trace with ``think_s`` new times at which they begin.

    As ``arrive``, but for sessions, because their later turns arrive when the earlier ones are over: the rate
    counts sessions a second, and only those that begin before the duration are there. ``num_requests`` counts
    turns.

    Args, Raises:
        see ``arrive``; ``sosp``, which shuffles requests, is refused.
    """
    if kind == "sosp":
        raise PagesimError("arrivals sosp shuffle requests; under turns after-completion choose another")
    number_of = numbered_sessions(trace)
    first = np.unique(number_of, return_index=True)[1]
    if kind in ("recorded", "replay"):
        begun = arrive(trace.take(first), kind, rate=rate, duration=duration, seed=seed)
        times, note = begun.arrival_s, begun.notes[-1]
    else:
        sessions = None
        if duration is None:
            sessions = len(first) if num_requests is None else _sessions_of(number_of, num_requests)
        times = arrival_times(kind, rate=rate, cv=cv, duration=duration, num_requests=sessions, seed=seed)
        note = f"arrivals of sessions: {kind}" + ("" if rate is None else f", rate {rate:g}, seed {seed}")
    rows_of = np.argsort(number_of, kind="stable")
    starts = np.searchsorted(number_of[rows_of], np.arange(len(first) + 1))
    again, session = np.divmod(np.arange(len(times)), len(first))
    sizes = (starts[1:] - starts[:-1])[session]
    turn = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    rows = rows_of[np.repeat(starts[session], sizes) + turn]
    source = (np.repeat(again, sizes) * len(trace) + rows)[:num_requests]
    begun = placed(trace, np.repeat(times, sizes)[:num_requests], note, source)
    return begun if again.any() else begun.with_columns({"request_id": trace.request_id[source]})


def _sessions_of(number_of: IntColumn, num_requests: int) -> int:
    """Return how many sessions have so many turns together, the trace repeated as often as that takes."""
    turns = np.cumsum(np.bincount(number_of))
    whole, rest = divmod(num_requests, int(turns[-1]))
    return whole * len(turns) + (int(np.searchsorted(turns, rest)) + 1 if rest else 0)

"""Equations: what requests' windows say of the coefficients, over the iterations of a simulated run."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pagesim.experiments.fit.iterations import REGRESSORS, Simulated
from pagesim.experiments.recorded.recording import Floats, Ints, RecordedRun, Rows
from pagesim.sim.clock import TICKS_PER_SECOND

COLUMNS = (*REGRESSORS, "front_end")
"""Of what is fitted: the regressors of an iteration's time, and what a TTFT has beside iterations."""

GROUPS = 20
"""Groups of successive requests in a load: those of one met much the same iterations."""

QUEUED = 0.25
"""Share of its TTFT that a request waits in the queue, by the simulation, from which on its TTFT does not
count: it says how long others take, as their own windows do, and every request behind it says so again."""


FEWEST_STARTS = 20
"""Requests that did not queue below which no TTFT counts: a run that begins with a burst has a few, its first
ones, and these contain compilation."""


class Equations(NamedTuple):
    """Rows of a regression.

    Attributes:
        features: by ``COLUMNS``, ``[N, len(COLUMNS)]``.
        seconds: measured, ``[N]``.
        known: seconds accounted for beforehand, ``[N]``.
        of_ttft: rows that are a time to the first token; the others go from the first to the last, ``[N]``.
        groups: of rows whose errors may be alike, ``[N]``.
    """

    features: Floats
    seconds: Floats
    known: Floats
    of_ttft: Rows
    groups: Ints


def equations(
    load: RecordedRun, run: Simulated, used: Floats, number: int, first: int | None = None
) -> Equations:
    """Return what a load says.

    A request's window goes from its first token to its last, and takes what the iterations do that end in it.
    Which these are is read from the simulation: it knows batches, contexts, chunks, prefix hits and
    preemptions, where a log knows when tokens came.

    Args:
        load: what was measured.
        run: the same load, simulated.
        used: by ``REGRESSORS``, seconds by which it was, beside those known beforehand.
        number: of the load, for groups.
        first: of how many requests, from the first on, the log is looked at; all when left out.
    """
    size = len(load)
    asked = np.arange(size) < (size if first is None else first)
    before = np.inf if first is None or first >= size else load.first_s[first]
    arrival, scheduled, first_token, finish = map(
        run.at, ("arrival", "first_scheduled", "first_token", "finish")
    )
    waited, ttft = scheduled - arrival, np.maximum(1, first_token - arrival)
    answered = asked & (first_token >= 0) & (finish >= 0)
    decoding = answered & (load.last_s > load.first_s) & (finish > first_token) & (load.last_s < before)
    starting = answered & (load.ttft_s > 0) & (waited / ttft < QUEUED) & (load.first_s < before)
    if starting.sum() < FEWEST_STARTS:
        starting[:] = False
    windows = run.windows.between(first_token, finish)[decoding]
    starts = run.windows.between(arrival, first_token)[starting]
    return Equations(
        np.vstack(
            [
                np.column_stack([windows[:, :-1], np.zeros(len(windows))]),
                np.column_stack([starts[:, :-1], np.ones(len(starts))]),
            ]
        ),
        np.concatenate([(load.last_s - load.first_s)[decoding], load.ttft_s[starting]]),
        # A TTFT also has what is left of the iteration that runs when the request arrives, for which that one
        # counts whole: whatever of the simulated TTFT is not those iterations is taken as it is.
        np.concatenate([windows[:, -1], ttft[starting] / TICKS_PER_SECOND - starts[:, :-1] @ used]),
        np.repeat([False, True], [len(windows), len(starts)]),
        np.concatenate([np.flatnonzero(each) for each in (decoding, starting)]) * GROUPS // size
        + number * GROUPS,
    )

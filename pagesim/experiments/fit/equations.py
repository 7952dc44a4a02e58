"""Equations: what requests' time windows say about the coefficients, given a simulated run's iterations."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pagesim.experiments.fit.iterations import REGRESSORS, Simulated
from pagesim.experiments.recorded.recording import Floats, Ints, RecordedRun, Rows
from pagesim.sim.clock import TICKS_PER_SECOND

COLUMNS = (*REGRESSORS, "front_end")
"""The fitted columns: regressors of an iteration's time, and the part of a TTFT outside iterations."""

GROUPS = 20
"""Groups of consecutive requests per load; the requests of a group saw much the same iterations."""

QUEUED = 0.25
"""Share of its simulated TTFT spent in the queue from which on a TTFT is not used: it mostly shows how
long others take, as their own windows do and as every request behind it repeats."""


FEWEST_STARTS = 20
"""Minimum number of requests that did not queue for any TTFT to be used. A run that begins with a burst has
few, namely its first ones, whose times include compilation."""


class Equations(NamedTuple):
    """Rows of a regression.

    Attributes:
        features: values of ``COLUMNS``, ``[N, len(COLUMNS)]``.
        seconds: measured time, ``[N]``.
        known: part of the time that is known beforehand, in seconds, ``[N]``.
        of_ttft: whether a row is a time to the first token, else from the first to the last token, ``[N]``.
        groups: groups of rows whose errors may be correlated, ``[N]``.
    """

    features: Floats
    seconds: Floats
    known: Floats
    of_ttft: Rows
    groups: Ints


def equations(
    load: RecordedRun, run: Simulated, used: Floats, number: int, first: int | None = None
) -> Equations:
    """Return the rows of a load.

    A request's window lasts from its first token to its last, and takes the time of the iterations that end
    in it. The simulation tells which ones these are: it knows batches, contexts, chunks, prefix hits and
    preemptions, whereas a log only knows when tokens arrived.

    Args:
        load: the measured load.
        run: simulation of the same load.
        used: values of ``REGRESSORS`` used in that simulation.
        number: index of the load, for groups.
        first: number of leading requests whose log is used; all if omitted.
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
                np.column_stack([windows, np.zeros(len(windows))]),
                np.column_stack([starts, np.ones(len(starts))]),
            ]
        ),
        np.concatenate([(load.last_s - load.first_s)[decoding], load.ttft_s[starting]]),
        # A TTFT also includes the rest of the iteration that runs when the request arrives, although that one
        # counts whole. So the part of the simulated TTFT outside these iterations is taken as known.
        np.concatenate([np.zeros(len(windows)), ttft[starting] / TICKS_PER_SECOND - starts @ used]),
        np.repeat([False, True], [len(windows), len(starts)]),
        np.concatenate([np.flatnonzero(each) for each in (decoding, starting)]) * GROUPS // size
        + number * GROUPS,
    )

"""Replay: rerun a stored run with observers, and check that it gives the stored outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from pagesim.accounting.request_log import RequestLog
from pagesim.api import trace_of
from pagesim.errors import PagesimError
from pagesim.results.result import Result
from pagesim.scheduling.arrivals import NEVER
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.observer import FastForward, Observer
from pagesim.setup.prepare import PreparedSystem, prepare
from pagesim.setup.scenario import Scenario
from pagesim.setup.server import ProgressObserver, Server

Seen = TypeVar("Seen")

Say = Callable[[str], object]
"""Callback for progress messages."""

UPDATE_EVERY = 500
"""Requests between two updates of the progress line."""


class NotReplayed(Exception):
    """A stored run cannot be reproduced; the message says why."""


class Looks(Observer, Generic[Seen]):
    """Inspects an engine in the first iteration at or after each instant; subclasses define what is returned.

    Args:
        instants: ticks, ascending.

    Attributes:
        taken: results of the inspections, in order.
        shown: index in ``taken`` for each instant, ``[N]``.
    """

    def __init__(self, instants: Sequence[int]) -> None:
        self.instants = instants
        self.taken: list[Seen] = []
        self.shown: list[int] = []
        self._iterations = 0

    def look(self, number: int, now: int, batch: Batch | None) -> Seen:
        """Return the observed state after scheduling.

        Args:
            number: number of the iteration; -1 while no request runs.
            now: ticks at which it was scheduled, or since when the engine has been idle.
            batch: batch that it computes; None while no request runs.
        """
        raise NotImplementedError

    def next_look(self) -> int:
        return self.instants[len(self.shown)] if len(self.shown) < len(self.instants) else NEVER

    def planned(self, batch: Batch, now: int, start: int, ticks: int) -> None:
        if self.next_look() <= now:
            self._take(self._iterations, now, now, batch)
        self._iterations += 1

    def fast_forwarded(self, run: FastForward) -> None:
        self._iterations += run.steps

    def idle(self, now: int, until: int) -> None:
        if self.next_look() < until:
            self._take(-1, now, until, None)

    def _take(self, number: int, now: int, until: int, batch: Batch | None) -> None:
        """Inspect once for all pending instants up to ``now`` or before ``until``."""
        while (due := self.next_look()) <= now or due < until:
            self.shown.append(len(self.taken))
        self.taken.append(self.look(number, now, batch))


def server_of(setting: PreparedSystem, log: RequestLog, *observers: Observer, tables: bool = False) -> Server:
    """Return a server that replays a system's trace and records only through its observers."""
    aborts = setting.aborts()
    return Server(setting, log, setting.arrivals(), aborts=aborts, observers=observers, tables=tables)


def requests_over(name: str, result: Result, progress: Say) -> ProgressObserver:
    """Report that a replay starts, and return the observer that reports the share of requests replayed."""
    total = max(1, len(result.request_columns["arrival_s"]))

    def update(over: int) -> None:
        if over % UPDATE_EVERY == 0:
            progress(f"replaying {name}: {100 * over // total} %")

    update(0)
    return ProgressObserver(update)


def replayed(result: Result, carry_out: Callable[[PreparedSystem, RequestLog], Seen]) -> Seen:
    """Replay a stored run and return what was observed.

    Args:
        result: result as returned by `pagesim.load`.
        carry_out: function that replays a system's trace, logs requests' times and returns observations.

    Raises:
        NotReplayed: the run cannot be replayed, or its outcome differs from the stored one.
    """
    scenario = result.scenario
    if not isinstance(scenario, Scenario):
        raise NotReplayed("its trace was given as an object, which is not stored with the result")
    if result.summary.get("clock") == "measured":
        raise NotReplayed("it was carried out live, and times that were measured do not come again")
    try:
        setting = prepare(scenario, trace_of(scenario))
    except PagesimError as error:
        raise NotReplayed(f"it cannot be replayed: {error}") from None
    log = setting.new_log()
    seen = carry_out(setting, log)
    _, columns = setting.summary(log)
    differs = first_difference(columns, result.request_columns)
    if differs is not None:
        raise NotReplayed(
            f"a replay gives another {differs} than is stored: the trace, or pagesim, has changed since"
        )
    return seen


def first_difference(
    ours: Mapping[str, npt.NDArray[Any]], stored: Mapping[str, npt.NDArray[Any]]
) -> str | None:
    """Return the first column of two requests tables that differs; None if there is none."""
    for name in {**stored, **ours}:
        if name not in ours or name not in stored or not _same(ours[name], stored[name]):
            return name
    return None


def _same(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> bool:
    if a.dtype.kind == b.dtype.kind == "f":
        return np.array_equal(a, b, equal_nan=True)
    if "O" in (a.dtype.kind, b.dtype.kind):  # texts, or lists in which NaN is not equal to NaN
        return [_text(x) for x in a] == [_text(x) for x in b]
    return np.array_equal(a, b)


def _text(value: Any) -> str:
    return str(value.tolist() if isinstance(value, np.ndarray) else value)

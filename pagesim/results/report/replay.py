"""Replay: a stored run once more, under the eyes of a film."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pagesim.accounting.records import RequestLog
from pagesim.api import trace_of
from pagesim.errors import PagesimError
from pagesim.results.report.film import Film
from pagesim.results.result import Result
from pagesim.scheduling import Plan
from pagesim.setup.prepare import Consume, Server, Setting, prepare
from pagesim.setup.requests import aborts
from pagesim.setup.scenario import Scenario
from pagesim.sim.clock import steps_before
from pagesim.sim.engine import Engine
from pagesim.sim.executors import PredictedExecutor

if TYPE_CHECKING:
    import simpy


class NoFilm(Exception):
    """A run cannot be replayed as it was; the sentence says why."""


class FilmedExecutor(PredictedExecutor):
    """A cost model's executor under another name.

    What an engine does in a faster way where it knows the executor, it does here in the general way, which a
    film can follow.
    """


class FilmedEngine(Engine):
    """An engine that stops leaping where a film wants to look; all that it does is the same."""

    film: Film

    def _go_on(self, now: int) -> int | None:
        due = self.film.due
        ticks = None if due is not None and due <= now else super()._go_on(now)
        if ticks is not None:
            self.film.end = now + ticks
        return ticks

    def _iterate(self, plan: Plan, now: int) -> int:
        self.film.iteration(plan, self.recorder.iterations, now)
        ticks = super()._iterate(plan, now)
        self.film.end = now + ticks
        return ticks

    def _bounded(self, steps: int, first: int, increment: int, start: int) -> int:
        steps = super()._bounded(steps, first, increment, start)
        due = self.film.due
        return steps if due is None else min(steps, steps_before(first, increment, due - start))

    def _idle(self, environment: simpy.Environment) -> Generator[simpy.Event, Any, None]:
        self.film.idle(int(environment.now), self.scheduler.next_arrival)
        yield from super()._idle(environment)

    def _note_departures(self, plan: Plan, now: int) -> None:
        super()._note_departures(plan, now)
        self.film.departures(plan, now)


def film(result: Result, instants: list[int]) -> Film:
    """Replay a stored run and look at its memory at some instants.

    Args:
        result: as `pagesim.load` returns it.
        instants: ticks, rising.

    Raises:
        NoFilm: the run cannot be replayed, or what comes of it is not what was stored.
    """
    scenario = result.scenario
    if not isinstance(scenario, Scenario):
        raise NoFilm("its trace was given as an object, which is not stored with the result")
    if result.summary.get("clock") == "measured":
        raise NoFilm("it was carried out live, and times that were measured do not come again")
    try:
        setting = prepare(scenario, trace_of(scenario))
    except PagesimError as error:
        raise NoFilm(f"it cannot be replayed: {error}") from None
    log = setting.new_log()
    taken = shoot(setting, log, instants)
    _, columns = setting.summary(log)
    differs = first_difference(columns, result.request_columns)
    if differs is not None:
        raise NoFilm(
            f"a replay gives another {differs} than is stored: the trace, or pagesim, has changed since"
        )
    return taken


def shoot(
    setting: Setting, log: RequestLog, instants: Sequence[int], consume: Sequence[Consume] = ()
) -> Film:
    """Replay a trace on a system and look at its memory at some instants.

    Args:
        setting: the system and the trace.
        log: where requests' times go.
        instants: ticks, rising.
        consume: hears of each chunk of the records.
    """
    server = Server(
        setting,
        log,
        setting.arrivals(),
        consume=consume,
        aborts=aborts(setting.trace, setting.system.client_timeout),
        executor=lambda *_: FilmedExecutor(setting.cost),
        kind=FilmedEngine,
    )
    engine = server.engine
    assert isinstance(engine, FilmedEngine)
    engine.film = Film(server.scheduler, instants)
    engine.run()
    engine.film.idle(engine.film.end, None)
    return engine.film


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

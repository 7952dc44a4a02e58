"""Replay: a stored run once more, with snapshots of its memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pagesim.accounting.request_log import RequestLog
from pagesim.api import trace_of
from pagesim.errors import PagesimError
from pagesim.results.report.snapshots import Snapshots
from pagesim.results.result import Result
from pagesim.scheduling.arrivals import NEVER
from pagesim.setup.prepare import Consume, PreparedSystem, Server, prepare
from pagesim.setup.scenario import Scenario


class NotReplayed(Exception):
    """A run cannot be replayed as it was; the sentence says why."""


def snapshots_of(result: Result, instants: Sequence[int]) -> Snapshots:
    """Replay a stored run; return snapshots of its memory at some instants.

    Args:
        result: as `pagesim.load` returns it.
        instants: ticks, rising.

    Raises:
        NotReplayed: the run cannot be replayed, or what comes of it is not what was stored.
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
    snapshots = replay(setting, log, instants)
    _, columns = setting.summary(log)
    differs = first_difference(columns, result.request_columns)
    if differs is not None:
        raise NotReplayed(
            f"a replay gives another {differs} than is stored: the trace, or pagesim, has changed since"
        )
    return snapshots


def replay(
    setting: PreparedSystem, log: RequestLog, instants: Sequence[int], consume: Sequence[Consume] = ()
) -> Snapshots:
    """Replay a trace on a system; return snapshots of its memory at some instants.

    Args:
        setting: the system and the trace.
        log: where requests' times go.
        instants: ticks, rising.
        consume: called with each chunk of the records.

    Raises:
        NotReplayed: its blocks have no numbers.
    """
    snapshots = Snapshots(instants)
    server = Server(
        setting,
        log,
        setting.arrivals(),
        consume=consume,
        aborts=setting.aborts(),
        observers=[snapshots],
        tables=True,
    )
    memory = server.scheduler.memory
    if not memory.names_blocks:
        raise NotReplayed(f"placement {setting.policy.placement} counts blocks and gives them no numbers")
    server.replay()
    snapshots.idle(server.engine.over_at, NEVER)
    return snapshots


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

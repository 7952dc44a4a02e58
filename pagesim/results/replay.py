"""Replay: a stored run once more, with observers, and whether it came out as it was stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from pagesim.accounting.request_log import RequestLog
from pagesim.api import trace_of
from pagesim.errors import PagesimError
from pagesim.results.result import Result
from pagesim.setup.prepare import PreparedSystem, prepare
from pagesim.setup.scenario import Scenario

Seen = TypeVar("Seen")

MUCH_LARGER, LARGE = 100, 100_000
"""What a scenario asks for may be so many times what is stored, and so many more, and is replayed."""


class NotReplayed(Exception):
    """A run cannot be replayed as it was; the sentence says why."""


def replayed(result: Result, carry_out: Callable[[PreparedSystem, RequestLog], Seen]) -> Seen:
    """Replay a stored run; return what was seen on the way.

    Args:
        result: as `pagesim.load` returns it.
        carry_out: replays a system's trace, notes requests' times in a log, and returns what it saw.

    Raises:
        NotReplayed: the run cannot be replayed, or what comes of it is not what was stored.
    """
    scenario = result.scenario
    if not isinstance(scenario, Scenario):
        raise NotReplayed("its trace was given as an object, which is not stored with the result")
    if result.summary.get("clock") == "measured":
        raise NotReplayed("it was carried out live, and times that were measured do not come again")
    _check_size(scenario, result)
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


def _check_size(scenario: Scenario, result: Result) -> None:
    """Make sure that a scenario is about as large as what is stored with it: others may have changed it.

    Raises:
        NotReplayed: a replay would take far more requests or blocks than there were.
    """
    asked = scenario.num_requests or (scenario.rate or 0) * (scenario.duration or 0)
    memory = result.summary["memory"]
    for what, wanted, there in (
        ("requests", asked, result.summary["requests"]["total"]),
        ("blocks", scenario.num_blocks or 0, memory["num_blocks"]),
        ("blocks of swap space", scenario.cpu_blocks or 0, memory["cpu_blocks"]),
    ):
        if wanted > MUCH_LARGER * there + LARGE:
            raise NotReplayed(f"its scenario asks for about {wanted:.0f} {what}, and {there} are stored")


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

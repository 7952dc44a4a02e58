"""The first preemption or prefix hit of a golden log, as the engine logged it and as pagesim decides it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pagesim.errors import PagesimError
from pagesim.experiments.golden.compare import Difference, first_difference
from pagesim.experiments.golden.manifest import GoldenLog
from pagesim.experiments.golden.replay import side_by_side

if TYPE_CHECKING:  # pandas takes long to import
    import pandas as pd

_EVENTS = (
    ("num_preempted", "requests preempted"),
    ("num_retracted", "requests retracted"),
    ("prefix_hit_tokens", "tokens found in the prefix cache"),
    ("blocks_swapped_out", "blocks swapped out"),
    ("evicted_tokens", "tokens evicted"),
)
"""What an iteration may show that is worth a look, the first first, by the column that counts it."""


class Event(NamedTuple):
    """Some iterations of a log, one of them shown for what happens in it.

    Attributes:
        log: whose they are.
        step: the iteration in which it happens.
        what: happens.
        logged, decided: the iterations before, in and after it, a column each: the engine's and pagesim's.
        of: the iterations of the log.
        difference: the first of all iterations; None where all are equal.
    """

    log: GoldenLog
    step: int
    what: str
    logged: pd.DataFrame
    decided: pd.DataFrame
    of: int
    difference: Difference | None


def event(log: GoldenLog) -> Event:
    """Replay a log and return the first event of `_EVENTS` in it; its second iteration where there is none.

    Raises:
        PagesimError: a file of the log is absent or cannot be read, or the log has no iterations.
    """
    if log.missing is not None:
        raise PagesimError(f"show: log {log.name} is absent: there is no {log.missing.name}")
    found = side_by_side(log, stepping=True)
    if "steps" not in found:
        raise PagesimError(f"show: log {log.name} has no iterations: {', '.join(found)} are compared")
    decided, logged = found["steps"]
    number, what = 1, "nothing of the kind happens"
    for column, happens in _EVENTS:
        counts = [int(each) for each in logged[column]] if column in logged else []
        if any(counts):
            number = next(place for place, each in enumerate(counts) if each)
            what = f"{happens}: {counts[number]:,}"
            break
    rows = slice(max(0, number - 1), number + 2)
    shown = [name for name in logged.columns if not name.endswith("_crc")]
    difference = first_difference("steps", decided, logged)
    return Event(
        log, number, what, logged[shown].iloc[rows], decided[shown].iloc[rows], len(logged), difference
    )

"""Runs a bench: measures every point that is not stored yet, and stores each one at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pagesim.errors import PagesimError
from pagesim.kernels.bench.rows import OK, Point, Row, make_row
from pagesim.kernels.bench.store import RowStore
from pagesim.kernels.machine import digest
from pagesim.kernels.requirements import require_device

if TYPE_CHECKING:
    from pagesim.kernels.bench.session import Prepare

ProgressCallback = Callable[[int, int, str], None]
"""Called with (finished points, all points, the next point)."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a bench.

    Attributes:
        rows: one row per point in the points' order, including those measured by earlier runs.
        measured: number of points measured in this run.
        left: number of points not measured yet, because time ran out.
    """

    rows: list[Row]
    measured: int
    left: int


def run_points(
    points: Iterable[Point],
    device: str = "cpu",
    out: Path | None = None,
    *,
    seconds: float | None = None,
    time_limit_s: float | None = None,
    retry_failed: bool = False,
    seed: int = 0,
    progress: ProgressCallback | None = None,
    prepares: Mapping[str, Prepare] | None = None,
) -> Outcome:
    """Measure points and return their rows.

    A point that is stored in ``out`` with the same parameters, machine, versions and code is not measured
    again. A point that fails is stored with its error.

    Args:
        points: points to measure.
        device: ``cpu`` or ``cuda``.
        out: folder of the rows, created if missing; if omitted, rows are only returned.
        seconds: time for each point after its preparation; by default 0.2 on a GPU and 0.05 on a CPU.
        time_limit_s: seconds after which no further point is started.
        retry_failed: whether to remeasure points that failed before.
        seed: seed of the random inputs.
        progress: called before each measured point, and at the end; see `ProgressCallback`.
        prepares: functions that prepare ops that are not part of the bench, by op.

    Raises:
        PagesimError: a device, folder or number is invalid; or a point left the GPU unusable, in which case
            the same call in a new process continues after that point.
    """
    points = list({digest(point.row()): point for point in points}.values())
    if time_limit_s is not None and not time_limit_s > 0:
        raise PagesimError(f"time_limit is {time_limit_s}; it must be above 0 seconds")
    require_device(device)
    until = None if time_limit_s is None else time.monotonic() + time_limit_s
    from pagesim.kernels.bench.session import Session, prepare_of

    if seconds is None:
        seconds = 0.2 if device == "cuda" else 0.05
    session = Session(device, seconds, seed)
    measured = 0
    with RowStore(out) as store:
        keys = []
        for over, point in enumerate(points):
            key = point.key(session.machine)
            known = key in store and (store[key]["status"] == OK or not retry_failed)
            if not known:
                if until is not None and time.monotonic() > until:
                    continue
                if progress:
                    progress(over, len(points), str(point))
                prepare = (prepares or {}).get(point.op) or prepare_of(point)
                store.add(make_row(point, session.machine, session.measure(point, prepare)))
                measured += 1
                if session.lost:
                    store.publish()
                    raise PagesimError(
                        f"{point}: left the GPU unusable ({session.lost}); "
                        "it is recorded, run the same again to go on"
                    )
            keys.append(key)
        if progress:
            progress(len(points), len(points), "")
        store.publish()
        return Outcome([store[key] for key in keys], measured, len(points) - len(keys))

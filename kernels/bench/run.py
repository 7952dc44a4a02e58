"""Running a bench: every point that is not stored yet, each stored at once."""

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
"""Called with (points over, points in all, the point that comes next)."""


@dataclass(frozen=True)
class Outcome:
    """What a bench came to.

    Attributes:
        rows: one a point, in the points' order; those measured by earlier runs included.
        measured: how many were measured now.
        left: how many are not measured yet, because the time was up.
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

    A point that is stored in ``out`` under the same parameters, machine, versions and code is not measured
    again. A point that fails is stored with its error.

    Args:
        points: what to measure.
        device: ``cpu`` or ``cuda``.
        out: folder of the rows, made if it is not there; without, they are only returned.
        seconds: time for each point after it is prepared; 0.2 on a GPU and 0.05 on a CPU unless given.
        time_limit_s: begin no further point after so many seconds.
        retry_failed: measure those again that did not succeed before.
        seed: of the random inputs.
        progress: called after each point with how many are over, of how many, and the next.
        prepares: what makes an op ready that is not one of the bench's, by op.

    Raises:
        PagesimError: a device, a folder or a number is off; or a point left the GPU unusable, and then the
            same call in a new process goes on behind it.
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

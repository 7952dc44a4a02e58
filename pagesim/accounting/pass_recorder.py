"""A recorder for iterations whose start and duration become known only later."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from pagesim.accounting.chunks import ROW_FIELDS, Chunk
from pagesim.accounting.records import Recorder
from pagesim.accounting.request_log import RequestLog
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.core import Scheduler
from pagesim.setup.compiled import mypyc_attr

_START, _TICKS, _CONTINUING = (ROW_FIELDS.index(name) for name in ("start", "ticks", "continuing"))


@mypyc_attr(allow_interpreted_subclasses=True)
class Untimed:
    """An iteration whose start and duration are not known yet.

    Attributes:
        batch: batch that it computes.
        now: when it was decided, in ticks.
        place: offset of its row in the recorder's flat array.
        gone: trace rows of the requests preempted after it was planned.
    """

    __slots__ = ("batch", "gone", "now", "place")

    def __init__(self, batch: Batch, now: int, place: int) -> None:
        self.batch = batch
        self.now = now
        self.place = place
        self.gone: list[int] = []


@mypyc_attr(allow_interpreted_subclasses=True)
class PassRecorder(Recorder):
    """A recorder for an engine that steps in lockstep with others; `timed` tells it when each batch runs.

    Its arguments are those of `Recorder`.

    Attributes:
        untimed: planned iterations without a known time; nothing is flushed while there are any.
    """

    __slots__ = ("untimed",)

    def __init__(self, scheduler: Scheduler, log: RequestLog, consume: Callable[[Chunk], None]) -> None:
        super().__init__(scheduler, log, consume)
        self.untimed: deque[Untimed] = deque()

    def planned(self, batch: Batch, now: int, start: int, ticks: int) -> None:
        if not (batch.tokens or batch.launches):
            self._add_row(batch, now, now, 0, 0)
            return
        self.untimed.append(Untimed(batch, now, len(self._rows)))
        self._add_row(batch, now, 0, 0, 0)

    def timed(self, start: int, ticks: int) -> None:
        """Set the start and the duration of the oldest untimed iteration, in ticks."""
        untimed, rows = self.untimed.popleft(), self._rows
        place = untimed.place
        rows[place + _CONTINUING] = self._note_tokens(untimed.batch, untimed.now, start, ticks)
        rows[place + _START], rows[place + _TICKS] = start, ticks
        for row in untimed.gone:
            super()._go_away(row)

    def held_up(self, end: int, until: int) -> None:
        pass  # an engine reports this when it mistakes other iterations' time for its own

    def _go_away(self, row: int) -> None:
        if self.untimed:
            self.untimed[-1].gone.append(row)
        else:
            super()._go_away(row)

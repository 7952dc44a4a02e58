"""Timeline: what is kept of a run in addition to its tables, so that it can be drawn on a time line."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from pagesim.accounting.chunks import Chunk
from pagesim.accounting.ledger import Column
from pagesim.accounting.request_log import Move, RequestLog
from pagesim.costs import CostModel, IterationShape
from pagesim.scheduling.attention_spans import AttentionSpans
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.observer import FastForward, Observer
from pagesim.scheduling.request import Status
from pagesim.sim.clock import to_tick_column
from pagesim.sim.executor import shape_of
from pagesim.workloads.trace import Trace

_NUMBERS = IterationShape._fields.index("reached")
"""Fields of a shape that are numbers; the others say what is within the span."""

Slices = list[tuple[str, int, int]]
"""What a request did, from when to when, in ticks."""


class Timeline(Observer):
    """Observes one run; give it to `pagesim.api.run`.

    Args:
        every: whether the steps table that it goes with has a row an iteration, and not a row a stretch.

    Attributes:
        cost: what the iterations took.
        trace: the requests as the engine saw them.
        log: what became of them.
    """

    cost: CostModel
    trace: Trace
    log: RequestLog

    def __init__(self, *, every: bool) -> None:
        self.every = every
        self._ends: list[Column] = []
        self._shapes = array("q")
        self._iterations = 0
        self._spans: AttentionSpans | None = None
        # Where costs ask for it: by iteration, what was within each span; and of each fast-forward, in
        # order, its first iteration and `AttentionSpans.ahead` of it.
        self._reached: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self._forwards: list[int] = []
        self._ahead: list[list[tuple[int, int, int]]] = []

    def begin(self, cost: CostModel, trace: Trace, log: RequestLog) -> None:
        """Say what is going to run."""
        self.cost, self.trace, self.log = cost, trace, log
        log.moves = array("q")

    def begun(self, scheduler: Scheduler) -> None:
        self._spans = scheduler.spans

    def planned(self, batch: Batch, now: int, start: int, ticks: int) -> None:
        shape = shape_of(batch)
        self._shapes.fromlist([self._iterations, *shape[:_NUMBERS]])  # type: ignore[list-item]
        if self._spans is not None:
            self._reached[self._iterations] = shape.reached, shape.reached_pairs
        self._iterations += 1

    def fast_forwarded(self, run: FastForward) -> None:
        if self._spans is not None:
            self._forwards.append(self._iterations)
            self._ahead.append(self._spans.ahead())
        self._iterations += run.steps

    def add(self, chunk: Chunk) -> None:
        """Take a chunk's rows."""
        ends = chunk.start + chunk.ticks
        if not self.every:
            # A stretch ends where its last iteration does: the one before the next stretch's first.
            last = np.append(np.flatnonzero(chunk.rows.offset == 0)[1:] - 1, len(ends) - 1)
            ends = ends[last]
        self._ends.append(ends)

    def ends(self) -> Column:
        """Return when each row of the steps table ended, ``[R]``, in ticks."""
        return np.concatenate([np.empty(0, np.int64), *self._ends])

    def shapes(self) -> dict[int, IterationShape]:
        """Return the shapes of the iterations that were planned, by number; the others only decode."""
        width = 1 + _NUMBERS
        flat, reached = self._shapes, self._reached
        return {
            flat[at]: IterationShape(*flat[at + 1 : at + width], *reached.get(flat[at], ()))  # type: ignore[arg-type]
            for at in range(0, len(flat), width)
        }

    def span_tokens(self, iteration: int) -> tuple[int, ...]:
        """Return what was within each span in an iteration of a fast-forward, if costs look at that."""
        if self._spans is None:
            return ()
        at = bisect_right(self._forwards, iteration) - 1
        step = iteration - self._forwards[at]
        return tuple([tokens + increment * step for tokens, increment, _ in self._ahead[at]])

    def requests(self) -> Iterator[tuple[int, str, int, Slices]]:
        """Yield of each request its row, its status, its arrival and what it did, one after another."""
        log = self.log
        assert log.moves is not None, "the run was not observed"
        moves = np.array(log.moves, np.int64).reshape(-1, 3)
        moves = moves[np.argsort(moves[:, 0], kind="stable")]
        starts = np.searchsorted(moves[:, 0], np.arange(len(self.trace) + 1))
        ends = self.ends()
        over = int(ends[-1]) if len(ends) else 0
        arrivals = to_tick_column(self.trace.arrival_s).tolist() if log.sent is None else log.sent
        for row, arrival in enumerate(arrivals):
            if arrival < 0:  # never sent
                continue
            own = moves[starts[row] : starts[row + 1], 1:].tolist()
            turns = _turns(arrival, log.first_scheduled[row], log.first_token[row], own)
            end = log.finish[row] if log.finish[row] >= 0 else over
            slices = [
                (what, start, until)
                for (start, what), (until, _) in pairwise([*turns, (end, "")])
                if until > start and log.status[row] != Status.REJECTED
            ]
            yield row, Status(log.status[row]).name.lower(), arrival, slices


def _turns(arrival: int, scheduled: int, token: int, moves: list[list[int]]) -> list[tuple[int, str]]:
    """Return when a request began to do what, in order."""
    turns = [(arrival, "queued")]
    if scheduled < 0:
        return turns
    turns.append((scheduled, "prefill"))
    changes = [(when, Move(kind)) for kind, when in moves]
    if token >= 0:
        changes.append((token, Move.ANSWERED))
        # The token of an iteration is there before the next is planned.
        changes.sort(key=lambda change: (change[0], change[1] != Move.ANSWERED))
    swapped = False
    for when, move in changes:
        what = {
            Move.PREEMPTED: "preempted",
            Move.SWAPPED: "swapped",
            Move.BACK: "decode" if swapped else "prefill",
            Move.ANSWERED: "decode",
        }[move]
        swapped = move == Move.SWAPPED
        if what != turns[-1][1]:
            turns.append((when, what))
    return turns

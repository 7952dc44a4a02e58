"""Timeline: data recorded during a run, beyond its tables, from which a timeline can be drawn."""

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
"""Number of leading shape fields that are numbers; the others hold the tokens within attention spans."""

Slices = list[tuple[str, int, int]]
"""What a request did, as (activity, start, end), in ticks."""


class Timeline(Observer):
    """Observes one run; pass it to `pagesim.api.run`.

    Args:
        every: whether the accompanying steps table has one row per iteration, rather than per stretch.

    Attributes:
        cost: cost model of the iterations.
        trace: requests as the engine saw them.
        log: outcome of the requests.
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
        # If the cost model needs them: the tokens within each span by planned iteration, and, for each
        # fast-forward in order, its first iteration and its `AttentionSpans.ahead`.
        self._reached: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self._forwards: list[int] = []
        self._ahead: list[list[tuple[int, int, int]]] = []

    def begin(self, cost: CostModel, trace: Trace, log: RequestLog) -> None:
        """Store what is about to run, and start logging moves."""
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
        """Add a chunk's rows."""
        ends = chunk.start + chunk.ticks
        if not self.every:
            # A stretch ends with its last iteration, the one before the next stretch's first.
            last = np.append(np.flatnonzero(chunk.rows.offset == 0)[1:] - 1, len(ends) - 1)
            ends = ends[last]
        self._ends.append(ends)

    def ends(self) -> Column:
        """Return when each row of the steps table ended, ``[R]``, in ticks."""
        return np.concatenate([np.empty(0, np.int64), *self._ends])

    def shapes(self) -> dict[int, IterationShape]:
        """Return the shapes of the planned iterations, by number; all others only decode."""
        width = 1 + _NUMBERS
        flat, reached = self._shapes, self._reached
        return {
            flat[at]: IterationShape(*flat[at + 1 : at + width], *reached.get(flat[at], ()))  # type: ignore[arg-type]
            for at in range(0, len(flat), width)
        }

    def span_tokens(self, iteration: int) -> tuple[int, ...]:
        """Return the tokens within each span in a fast-forwarded iteration, if the cost model needs them."""
        if self._spans is None:
            return ()
        at = bisect_right(self._forwards, iteration) - 1
        step = iteration - self._forwards[at]
        return tuple([tokens + increment * step for tokens, increment, _ in self._ahead[at]])

    def requests(self) -> Iterator[tuple[int, str, int, Slices]]:
        """Yield each request's row, status, arrival in ticks and slices."""
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
    """Return a request's activities in order, each with the tick at which it began."""
    turns = [(arrival, "queued")]
    if scheduled < 0:
        return turns
    turns.append((scheduled, "prefill"))
    changes = [(when, Move(kind)) for kind, when in moves]
    if token >= 0:
        changes.append((token, Move.ANSWERED))
        # An iteration's token arrives before the next iteration is planned.
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

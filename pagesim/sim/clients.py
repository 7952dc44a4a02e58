"""Clients: who sends which request when, where that depends on when others are over."""

from __future__ import annotations

from array import array
from heapq import heappop, heappush

import numpy as np

from pagesim.scheduling.arrivals import NEVER
from pagesim.sim.clock import to_tick_column
from pagesim.workloads.arrivals import numbered_sessions
from pagesim.workloads.trace import IntColumn, Trace

_NOT_DUE = 1 << 64
"""Later than any instant at which a request can be due, in ticks."""


class Clients:
    """The clients of a closed loop.

    A request is due at its arrival. Where the trace has ``think_s``, a later turn of a session is due when
    the turn before is over and the client has thought. It is sent when it is due, or when fewer requests than
    the bound are outstanding, whichever is later; those that wait for that are sent in the order in which
    they were due, equal ones in that of the trace. A request is over when all its samples are, however they
    ended; one that is rejected, as soon as it is sent. What is over at an instant makes room at that instant.

    Args:
        trace: the requests as an engine sees them.
        accepted: the rows that are not rejected at submission, rising.
        request_of: for each row the client's request that it is a sample of, ``[N]``, not falling.
        max_concurrency: requests that may be outstanding; None for any number.
        client_timeout: seconds from sending after which a client goes away; None for never.
        until: ticks after which nothing is sent; None for no end.

    Attributes:
        sent, due: ticks of every row, ``[N]``; -1 for what has not happened.
    """

    def __init__(
        self,
        trace: Trace,
        accepted: IntColumn,
        request_of: IntColumn,
        *,
        max_concurrency: int | None,
        client_timeout: float | None,
        until: int | None = None,
    ) -> None:
        _, first, number_of = np.unique(request_of, return_index=True, return_inverse=True)
        requests = len(first)
        self._request_of = array("q", number_of.tolist())
        self._rows = array("q", [*first.tolist(), len(trace)])  # request k is rows [_rows[k], _rows[k + 1])
        self._accepted = array("q", np.searchsorted(accepted, np.append(first, len(trace))).tolist())
        own = trace.take(first)
        self._arrival = array("q", to_tick_column(own.arrival_s).tolist())
        self._next_turn = array("q", [-1]) * requests
        self._think = array("q", [0]) * requests
        begins = np.ones(requests, bool)
        if own.think_s is not None:
            self._think = array("q", to_tick_column(own.think_s).tolist())
            session = numbered_sessions(own)
            order = np.argsort(session, kind="stable")
            before, after = order[:-1], order[1:]
            alike = session[before] == session[after]
            begins[after[alike]] = False
            for one, other in zip(before[alike].tolist(), after[alike].tolist(), strict=True):
                self._next_turn[one] = other
        patience = np.full(requests, np.inf) if own.abort_s is None else own.abort_s - own.arrival_s
        if client_timeout is not None:
            patience = np.minimum(patience, client_timeout)
        waits = np.where(np.isfinite(patience), patience, 0.0)
        self._patience = array("q", np.where(np.isfinite(patience), to_tick_column(waits), NEVER).tolist())
        self._begin = array("q", np.flatnonzero(begins).tolist())  # what arrives by itself, in order
        self._at = 0  # the place of the next of them
        self._turns: list[tuple[int, int]] = []  # turns that are due at a known instant: a heap
        self._left = array("q", [0]) * requests  # samples that are not over, of those that are sent
        self._places = requests if max_concurrency is None else max_concurrency
        self._freed = 0  # when the last place became free
        self._until = _NOT_DUE - 1 if until is None else until
        self._leaving: list[tuple[int, int]] = []  # sent, but not told yet
        self.sent = array("q", [-1]) * len(trace)
        self.due = array("q", [-1]) * len(trace)

    @property
    def next_send(self) -> int:
        """When the next request is sent, in ticks, if none is over before; ``NEVER`` if none is."""
        if self._leaving:
            return self._leaving[0][1]
        if not self._places:
            return NEVER
        due = max(self._next_due(), self._freed)
        return due if due <= self._until else NEVER

    def send_until(self, now: int) -> list[tuple[int, int]]:
        """Return what is sent up to an instant and was not told before: (index among the accepted, ticks)."""
        self._send_due(now)
        found, self._leaving = self._leaving, []
        return found

    def request_ended(self, row: int, now: int) -> None:
        """Learn that a sample, or a request with all of its samples, has ended at an instant."""
        request = self._request_of[row]
        self._left[request] -= 1
        if not self._left[request]:
            self._send_due(now)  # what was due before found places that were free before
            self._places += 1
            self._freed = now
            self._follow(request, now)

    def abort_time(self, row: int) -> int | None:
        """Return when the client of a request that was sent goes away, in ticks; None if it does not."""
        patience = self._patience[self._request_of[row]]
        return None if patience == NEVER else self.sent[row] + patience

    # Inside

    def _next_due(self) -> int:
        begins = self._arrival[self._begin[self._at]] if self._at < len(self._begin) else _NOT_DUE
        return min(begins, self._turns[0][0]) if self._turns else begins

    def _send_due(self, now: int) -> None:
        while self._places:
            due = self._next_due()
            if due > now or max(due, self._freed) > self._until:
                return
            self._send(self._take(), due, max(due, self._freed))

    def _take(self) -> int:
        """Take the request that is due next."""
        if self._at == len(self._begin):
            return heappop(self._turns)[1]
        request = self._begin[self._at]
        if self._turns and self._turns[0] < (self._arrival[request], request):
            return heappop(self._turns)[1]
        self._at += 1
        return request

    def _send(self, request: int, due: int, now: int) -> None:
        for row in range(self._rows[request], self._rows[request + 1]):
            self.sent[row], self.due[row] = now, due
        samples = range(self._accepted[request], self._accepted[request + 1])
        if not samples:
            self._follow(request, now)
            return
        self._left[request] = len(samples)
        self._places -= 1
        self._leaving += [(index, now) for index in samples]

    def _follow(self, request: int, now: int) -> None:
        """Let the client of a request that is over think, if it has another turn."""
        turn = self._next_turn[request]
        if turn >= 0:
            heappush(self._turns, (now + self._think[turn], turn))

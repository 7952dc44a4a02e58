"""Closed-loop clients: when each request is sent, where that depends on when others finish."""

from __future__ import annotations

from array import array
from heapq import heappop, heappush

import numpy as np

from pagesim.scheduling.arrivals import NEVER
from pagesim.sim.clock import to_tick_column
from pagesim.workloads.arrivals import numbered_sessions
from pagesim.workloads.trace import IntColumn, Trace

_NOT_DUE = 1 << 64
"""An instant later than any at which a request can be due, in ticks."""


class Clients:
    """The clients of a closed loop.

    A request is due at its arrival. If the trace has ``think_s``, each later turn of a session is due one
    think time after the previous turn has ended. A request is sent when it is due, or when fewer than
    ``max_concurrency`` requests are outstanding, whichever is later. Requests that wait for this are sent in
    order of their due times, with ties in trace order. A request ends when all its samples have ended, in
    whatever way; a rejected one ends as soon as it is sent. Its slot is free at that same instant.

    Args:
        trace: the requests as an engine sees them.
        accepted: rows that are not rejected at submission, in ascending order.
        request_of: the client request that each row is a sample of, ``[N]``, non-decreasing.
        max_concurrency: number of requests that may be outstanding; None for no limit.
        client_timeout: seconds after sending at which a client aborts its request; None for never.
        until: ticks after which nothing is sent; None for no limit.

    Attributes:
        sent, due: ticks at which each row was sent or due, ``[N]``; -1 if that has not happened.
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
        self._begin = array("q", np.flatnonzero(begins).tolist())  # requests due at their arrival, in order
        self._at = 0  # index of the next of them
        self._turns: list[tuple[int, int]] = []  # heap of later turns whose due time is known
        self._left = array("q", [0]) * requests  # unfinished samples of each request sent
        self._places = requests if max_concurrency is None else max_concurrency
        self._freed = 0  # when a slot was last freed
        self._until = _NOT_DUE - 1 if until is None else until
        self._leaving: list[tuple[int, int]] = []  # sent, but not yet returned by ``send_until``
        self.sent = array("q", [-1]) * len(trace)
        self.due = array("q", [-1]) * len(trace)

    @property
    def next_send(self) -> int:
        """When the next request is sent if none ends before, in ticks; ``NEVER`` if none is sent."""
        if self._leaving:
            return self._leaving[0][1]
        if not self._places:
            return NEVER
        due = max(self._next_due(), self._freed)
        return due if due <= self._until else NEVER

    def send_until(self, now: int) -> list[tuple[int, int]]:
        """Return requests sent up to an instant and not returned before: (index among accepted, ticks)."""
        self._send_due(now)
        found, self._leaving = self._leaving, []
        return found

    def request_ended(self, row: int, now: int) -> None:
        """Note that a sample, or a request with all of its samples, has ended at an instant."""
        request = self._request_of[row]
        self._left[request] -= 1
        if not self._left[request]:
            self._send_due(now)  # earlier requests go into slots that were free before this one
            self._places += 1
            self._freed = now
            self._follow(request, now)

    def abort_time(self, row: int) -> int | None:
        """Return when the client aborts a request that was sent, in ticks; None if it never does."""
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
        """Remove and return the request that is due next."""
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
        """Schedule the session's next turn, if it has one, after its think time."""
        turn = self._next_turn[request]
        if turn >= 0:
            heappush(self._turns, (now + self._think[turn], turn))

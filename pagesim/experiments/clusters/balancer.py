"""vLLM's load balancer in front of data-parallel ranks: API servers that each know little of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from pagesim.experiments.clusters.coordinator import Counts
from pagesim.experiments.clusters.replicas import Replicas
from pagesim.experiments.clusters.routers import Router
from pagesim.workloads.trace import IntColumn, Request

FULL, HALF_FULL = 6.0, 0.5
"""By how much a waiting request counts more where blocks are in use, and the share from which on it does."""


class Choice(NamedTuple):
    """What an API server knew when it chose a rank, and which.

    Attributes:
        now: ticks.
        row: of the trace.
        server: by number, node after node.
        rank: that it chose.
        wave: that it took the ranks to be in.
        counts: of the ranks of its node, as published last, and its own requests since, ``[R]``.
        inflight: its own requests at each that are not over, ``[R]``.
        start: the rank that it looked at first.
    """

    now: int
    row: int
    server: int
    rank: int
    wave: int
    counts: Sequence[Counts]
    inflight: Sequence[int]
    start: int


class ApiServer:
    """One API server: it sends each request to the rank of its node that seems to have least to do.

    Source: vLLM 0.33.0, v1/engine/core_client.py, ``DPLBAsyncMPClient``.

    Args:
        number: among the servers of its node.
        of: how many those are.
        ranks: of its node.
    """

    def __init__(self, number: int, of: int, ranks: range) -> None:
        self.ranks = ranks
        self.counts = [Counts()] * len(ranks)
        self.inflight = [0] * len(ranks)
        self.start = len(ranks) * number // of
        self._servers = of

    def choose(self) -> int:
        """Return the rank that gets the next request, and count that."""
        ranks = len(self.ranks)
        chosen = min(((self.start + place) % ranks for place in range(ranks)), key=self._score)
        waiting, running, usage = self.counts[chosen]
        # Every other server is taken to send one there, too.
        self.counts[chosen] = Counts(waiting + self._servers, running, usage)
        self.start = (self.start + 1) % ranks
        self.inflight[chosen] += 1
        return self.ranks[chosen]

    def _score(self, place: int) -> float:
        waiting, running, usage = self.counts[place]
        score: float = max(self._servers * self.inflight[place], waiting + running)
        return score + waiting * FULL * max(0.0, usage - HALF_FULL)


class LoadBalancer:
    """The `Router` of vLLM's own load balancing: API servers take requests in turn, and choose among ranks.

    With nodes, each has its own servers, which choose among its ranks only (hybrid load balancing).

    Args:
        ranks: how many.
        servers: API servers of each node.
        nodes: how many, which divide the ranks.
        request_of: the client's request that each row of the trace is of, ``[N]``; a server takes whole ones.

    Attributes:
        wave: that ranks were in when anything was published last.
        choices: everything that was decided.
    """

    def __init__(self, ranks: int, servers: int, nodes: int, request_of: IntColumn) -> None:
        size = ranks // nodes
        self.wave = 0
        self.choices: list[Choice] = []
        self._servers = [
            [ApiServer(number, servers, range(first, first + size)) for number in range(servers)]
            for first in range(0, ranks, size)
        ]
        self._request_of = request_of
        self._sent_by: dict[int, tuple[ApiServer, int]] = {}  # and to which rank, by row

    def choose(self, request: Request, replicas: Replicas, now: int) -> int:
        number, nodes = int(self._request_of[request.row]), len(self._servers)
        of_node = self._servers[number % nodes]
        place = number // nodes % len(of_node)
        server = of_node[place]
        knew = list(server.counts), list(server.inflight), server.start
        rank = server.choose()
        at = number % nodes * len(of_node) + place
        self.choices.append(Choice(now, request.row, at, rank, self.wave, *knew))
        self._sent_by[request.row] = server, rank
        return rank

    def publish(self, counts: Sequence[Counts] | None, wave: int) -> None:
        """Learn what ranks have to do, ``[R]``, if anything was counted, and their wave."""
        self.wave = wave
        if counts is not None:
            for server in chain(*self._servers):
                server.counts = list(counts[server.ranks.start : server.ranks.stop])

    def over(self, row: int) -> None:
        """Learn that a request is over, by its row of the trace."""
        server, rank = self._sent_by.pop(row)
        server.inflight[rank - server.ranks.start] -= 1


class WholeRequests:
    """A `Router` in front of ranks that sends all samples of a client's request one way.

    Args:
        router: asked once a request.
        request_of: the client's request that each row of the trace is of, ``[N]``.
    """

    def __init__(self, router: Router, request_of: IntColumn) -> None:
        self._router = router
        self._request_of = request_of
        self._last = -1, 0

    def choose(self, request: Request, replicas: Replicas, now: int) -> int:
        number = int(self._request_of[request.row])
        if number != self._last[0]:
            self._last = number, self._router.choose(request, replicas, now)
        return self._last[1]

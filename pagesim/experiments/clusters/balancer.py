"""vLLM's load balancer for data-parallel ranks: API servers that each see only part of the ranks' load."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from pagesim.experiments.clusters.coordinator import Counts
from pagesim.experiments.clusters.replicas import Replicas
from pagesim.experiments.clusters.routers import Router
from pagesim.workloads.trace import IntColumn, Request

FULL, HALF_FULL = 6.0, 0.5
"""Extra weight of a waiting request per unit of block usage, and the usage above which it applies."""


class RankChoice(NamedTuple):
    """An API server's choice of a rank, and what it knew at that time.

    Attributes:
        now: time of the choice, in ticks.
        row: the request's row in the trace.
        server: index of the server, counted node by node.
        rank: the chosen rank.
        wave: the wave that the server believed the ranks to be in.
        counts: the last published load of its node's ranks plus the server's own requests since, ``[R]``.
        inflight: the server's own unfinished requests at each rank, ``[R]``.
        start: the rank at which the search started.
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
    """One API server, which sends each request to the seemingly least loaded rank of its node.

    Source: vLLM 0.33.0, v1/engine/core_client.py, ``DPLBAsyncMPClient``.

    Args:
        number: index of the server within its node.
        of: number of servers of the node.
        ranks: ranks of the node.
    """

    def __init__(self, number: int, of: int, ranks: range) -> None:
        self.ranks = ranks
        self.counts = [Counts()] * len(ranks)
        self.inflight = [0] * len(ranks)
        self.start = len(ranks) * number // of
        self._servers = of

    def choose(self) -> int:
        """Return the rank for the next request, and count that request."""
        ranks = len(self.ranks)
        chosen = min(((self.start + place) % ranks for place in range(ranks)), key=self._score)
        waiting, running, usage = self.counts[chosen]
        # Assume that every other server sends a request there, too.
        self.counts[chosen] = Counts(waiting + self._servers, running, usage)
        self.start = (self.start + 1) % ranks
        self.inflight[chosen] += 1
        return self.ranks[chosen]

    def _score(self, place: int) -> float:
        waiting, running, usage = self.counts[place]
        score: float = max(self._servers * self.inflight[place], waiting + running)
        return score + waiting * FULL * max(0.0, usage - HALF_FULL)


class LoadBalancer:
    """The `Router` of vLLM's own load balancing: API servers take turns, and each chooses a rank.

    With several nodes, each has its own servers, which choose only among its ranks (hybrid load balancing).

    Args:
        ranks: number of ranks.
        servers: number of API servers per node.
        nodes: number of nodes, which must divide ``ranks``.
        request_of: client request of each trace row, ``[N]``; a server takes all samples of a request.

    Attributes:
        wave: the ranks' wave at the last publication.
        choices: all choices so far.
    """

    def __init__(self, ranks: int, servers: int, nodes: int, request_of: IntColumn) -> None:
        size = ranks // nodes
        self.wave = 0
        self.choices: list[RankChoice] = []
        self._servers = [
            [ApiServer(number, servers, range(first, first + size)) for number in range(servers)]
            for first in range(0, ranks, size)
        ]
        self._request_of = request_of
        self._sent_by: dict[int, tuple[ApiServer, int]] = {}  # server and rank, by row

    def choose(self, request: Request, replicas: Replicas, now: int) -> int:
        number, nodes = int(self._request_of[request.row]), len(self._servers)
        of_node = self._servers[number % nodes]
        place = number // nodes % len(of_node)
        server = of_node[place]
        knew = list(server.counts), list(server.inflight), server.start
        rank = server.choose()
        at = number % nodes * len(of_node) + place
        self.choices.append(RankChoice(now, request.row, at, rank, self.wave, *knew))
        self._sent_by[request.row] = server, rank
        return rank

    def publish(self, counts: Sequence[Counts] | None, wave: int) -> None:
        """Receive the ranks' wave and, unless None, their load ``[R]``."""
        self.wave = wave
        if counts is not None:
            for server in chain(*self._servers):
                server.counts = list(counts[server.ranks.start : server.ranks.stop])

    def over(self, row: int) -> None:
        """Receive that the request of a trace row has finished."""
        server, rank = self._sent_by.pop(row)
        server.inflight[rank - server.ranks.start] -= 1


class WholeRequests:
    """A `Router` for ranks that sends all samples of a client request to the same rank.

    Args:
        router: router to ask once per client request.
        request_of: client request of each trace row, ``[N]``.
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

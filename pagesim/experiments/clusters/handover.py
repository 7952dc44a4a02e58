"""Handover: a request from its prefiller to its decoder, and what becomes of the blocks that it leaves."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush

import simpy

from pagesim.experiments.clusters.links import Ports
from pagesim.experiments.clusters.pool_replicas import Decoder, Prefiller
from pagesim.scheduling.request import EngineRequest, Status
from pagesim.sim.clock import TICKS_PER_SECOND
from pagesim.sim.process import ArrivalEvent, Events, HandoverEvent, start

Over = Callable[[int, int, Status], None]
"""Called with the row of a request that is over for its client, the instant, and how it ended."""


@dataclass(frozen=True, slots=True)
class Lease:
    """For how long a prefiller holds blocks for which nothing comes.

    A decoder that knows of a request renews the lease at least every ``seconds // 6`` seconds, each time to
    two thirds of it, from the request's arrival there until it was pulled. So a lease ends where no decoder
    knows of the request, or where two thirds of it are no whole second.

    Source: vLLM 0.33.0, distributed/kv_transfer/kv_connector/v1/nixl/base_scheduler.py,
    ``build_connector_meta``, and base_worker.py, ``_handle_heartbeat``.

    Attributes:
        seconds: whole ones; 0: blocks are not held at all.
    """

    seconds: int

    @property
    def holds(self) -> bool:
        """Whether blocks stay held."""
        return self.seconds > 0

    @property
    def is_renewed(self) -> bool:
        """Whether heartbeats keep it from ending."""
        return self.seconds * 2 // 3 > 0

    @property
    def ticks(self) -> int:
        """Its length, in ticks."""
        return self.seconds * TICKS_PER_SECOND


@dataclass(slots=True)
class Pulls:
    """What became of handovers, by row of the trace, ``[N]``; -1 for what has not happened.

    Attributes:
        prefiller, decoder: the replicas that each request went to.
        prefilled: when its prompt was computed, in ticks.
        begun, over: when its pull began and when it was over, in ticks.
        blocks: that were pulled.
        outcomes: how often a request was ``pulled``, was ``declined`` because it left before its pull began,
            had its ``lease_ended``, and was ``pulled_late``, when its blocks were no longer held.
    """

    prefiller: array[int]
    decoder: array[int]
    prefilled: array[int]
    begun: array[int]
    over: array[int]
    blocks: array[int]
    outcomes: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, requests: int) -> Pulls:
        """Return those of so many requests, of which nothing has happened."""

        def nothing() -> array[int]:
            return array("q", [-1]) * requests

        return cls(nothing(), nothing(), nothing(), nothing(), nothing(), nothing())


class Handover:
    """Takes requests from prefillers to decoders, on one clock.

    Args:
        environment: the clock.
        pulls: where is noted what happens.
        ports: of the replicas.
        lease: of the blocks that prefillers hold.
        delay: ticks from a prefiller's answer until the decoder has the request.
        route: chooses a decoder for a row at an instant, and submits the request to it.
        leaves: when the client of a row goes away, in ticks; None if it does not.
        over: see `Over`.
    """

    def __init__(
        self,
        environment: simpy.Environment,
        pulls: Pulls,
        ports: Ports,
        lease: Lease,
        delay: int,
        route: Callable[[int, int], None],
        leaves: Callable[[int], int | None],
        over: Over,
    ) -> None:
        self.pulls = pulls
        self.prefillers: list[Prefiller] = []
        self.decoders: list[Decoder] = []
        self._environment = environment
        self._ports = ports
        self._lease = lease
        self._delay = delay
        self._route = route
        self._leaves = leaves
        self._over = over
        self._ready: list[tuple[int, int]] = []  # (instant, row) of those on their way: a heap
        self._held: set[int] = set()  # rows whose blocks a prefiller holds
        self._known: set[int] = set()  # rows of which a decoder knows and that are not pulled

    # What prefillers and decoders tell

    def left_prefiller(self, row: int, now: int, status: Status, keeps: bool) -> None:
        """A request is over on its prefiller; ``keeps`` if that holds its blocks."""
        if status != Status.FINISHED:
            self._over(row, now, status)
            return
        self.pulls.prefilled[row] = now
        if keeps and self._lease.holds:
            self._held.add(row)
            start(self._environment, self._end_lease(row))
        heappush(self._ready, (now + self._delay, row))
        HandoverEvent(self._environment, self._delay).callbacks.append(self._hand_over)

    def pull(self, request: EngineRequest, blocks: int, now: int) -> int:
        """Begin to pull a request's blocks to its decoder; return when they are there."""
        row, pulls = request.row, self.pulls
        if self._lease.holds and row not in self._held:
            pulls.outcomes["pulled_late"] += 1
        over = self._ports.pull(pulls.prefiller[row], pulls.decoder[row], blocks, now)
        pulls.begun[row], pulls.over[row], pulls.blocks[row] = now, over, blocks
        pulls.outcomes["pulled"] += 1
        ArrivalEvent(self._environment, over - now).callbacks.append(lambda _: self._acknowledge(row))
        return over

    def left_decoder(self, row: int, now: int, status: Status, keeps: bool) -> None:
        """A request is over on its decoder, whose blocks are its own affair."""
        if self.pulls.begun[row] < 0:
            self.pulls.outcomes["declined"] += 1
            self._acknowledge(row)
        self._over(row, now, status)

    # Inside

    def _hand_over(self, event: simpy.Event) -> None:
        """Route the requests that reach the decoders' router now, in their order in the trace."""
        now = int(self._environment.now)
        while self._ready and self._ready[0][0] <= now:
            row = heappop(self._ready)[1]
            leaves = self._leaves(row)
            if leaves is not None and leaves <= now:
                self._over(row, leaves, Status.ABORTED)  # no replica learns of it: the lease ends
            else:
                self._known.add(row)
                self._route(row, now)

    def _acknowledge(self, row: int) -> None:
        """Let the prefiller know that the blocks of a request are where they belong, or not wanted."""
        self._known.discard(row)
        self._let_go(row)

    def _let_go(self, row: int) -> None:
        """Let a prefiller hold the blocks of a request no longer."""
        if row in self._held:
            self._held.remove(row)
            self.prefillers[self.pulls.prefiller[row]].acknowledge(row, int(self._environment.now))

    def _end_lease(self, row: int) -> Events:
        yield ArrivalEvent(self._environment, self._lease.ticks)
        if row in self._held and not (row in self._known and self._lease.is_renewed):
            self.pulls.outcomes["lease_ended"] += 1
            self._let_go(row)

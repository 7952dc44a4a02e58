"""Handover of requests from prefillers to decoders, and what happens to the blocks left behind."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np
import simpy

from pagesim.experiments.clusters.fleet import Fleet, ReplicaPool
from pagesim.experiments.clusters.links import Ports
from pagesim.experiments.clusters.pool_replicas import Prefiller
from pagesim.scheduling.request import EngineRequest, Status
from pagesim.sim.clock import TICKS_PER_SECOND
from pagesim.sim.process import ArrivalEvent, Events, HandoverEvent, start
from pagesim.workloads.trace import IntColumn


@dataclass(slots=True)
class Pulls:
    """What happened to handovers, by trace row, ``[N]``; -1 for what has not happened.

    Attributes:
        prefiller, decoder: replicas that each request was routed to; known after the run.
        prefilled: when the request's prefill finished, in ticks.
        begun, over: when its pull started and ended, in ticks.
        blocks: number of blocks pulled.
        outcomes: how many requests were ``pulled``, ``declined`` (left before the pull), had their
            ``lease_ended``, or were ``pulled_late`` (after the prefiller had released the blocks).
    """

    prefiller: IntColumn
    decoder: IntColumn
    prefilled: array[int]
    begun: array[int]
    over: array[int]
    blocks: array[int]
    outcomes: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, requests: int) -> Pulls:
        """Return the record of this many requests to which nothing has happened yet."""

        def nothing() -> array[int]:
            return array("q", [-1]) * requests

        nowhere = np.full(requests, -1, np.int64)
        return cls(nowhere, nowhere, nothing(), nothing(), nothing(), nothing())


class Handover:
    """Moves requests from prefillers to decoders, on one clock.

    A prefiller holds blocks that no decoder pulls for the length of their lease. From a request's arrival at
    its decoder until its blocks are pulled, the decoder renews the lease at least every ``lease // 6``
    seconds, each time to two thirds of ``lease``. So a lease ends only if no decoder knows of the request, or
    if two thirds of ``lease`` are less than a whole second.

    Source: vLLM 0.33.0, distributed/kv_transfer/kv_connector/v1/nixl/base_scheduler.py,
    ``build_connector_meta``, and base_worker.py, ``_handle_heartbeat``.

    Args:
        fleet: all replicas.
        pulls: record of what happens.
        prefill: pool that requests come from.
        decode: pool that requests go to.
        ports: network ports of the replicas.
        lease: length of a lease in whole seconds; with 0, blocks are not held at all.
        delay: ticks from a prefiller's response until the decoder has the request.
        over: called when a request has finished for its client, with its row, the time and its final status.
    """

    def __init__(
        self,
        fleet: Fleet,
        pulls: Pulls,
        prefill: ReplicaPool,
        decode: ReplicaPool,
        ports: Ports,
        lease: int,
        delay: int,
        over: Callable[[int, int, Status], None],
    ) -> None:
        self.pulls = pulls
        self._environment = fleet.environment
        self._fleet, self._prefill, self._decode = fleet, prefill, decode
        self._ports = ports
        self._lease = lease
        self._delay = delay
        self._over = over
        self._ready: list[tuple[int, int]] = []  # heap of (instant, row): requests on their way to a decoder
        self._held: set[int] = set()  # rows whose blocks a prefiller holds
        self._known: set[int] = set()  # rows that a decoder has received but not pulled

    # Called by prefillers and decoders

    def left_prefiller(self, row: int, now: int, status: Status, keeps: bool) -> None:
        """Handle the end of a request on its prefiller, which keeps its blocks if ``keeps``."""
        if status != Status.FINISHED:
            self._over(row, now, status)
            return
        self.pulls.prefilled[row] = now
        if keeps and self._lease:
            self._held.add(row)
            start(self._environment, self._end_lease(row))
        heappush(self._ready, (now + self._delay, row))
        HandoverEvent(self._environment, self._delay).callbacks.append(self._hand_over)

    def pull(self, request: EngineRequest, blocks: int, now: int) -> int:
        """Start pulling a request's blocks to its decoder; return when they arrive, in ticks."""
        row, pulls = request.row, self.pulls
        if self._lease and row not in self._held:
            pulls.outcomes["pulled_late"] += 1
        over = self._ports.pull(int(self._prefill.went_to[row]), int(self._decode.went_to[row]), blocks, now)
        pulls.begun[row], pulls.over[row], pulls.blocks[row] = now, over, blocks
        pulls.outcomes["pulled"] += 1
        ArrivalEvent(self._environment, over - now).callbacks.append(lambda _: self._acknowledge(row))
        return over

    def left_decoder(self, row: int, now: int, status: Status, keeps: bool) -> None:
        """Handle the end of a request on its decoder, which frees the blocks itself."""
        if self.pulls.begun[row] < 0:
            self.pulls.outcomes["declined"] += 1
            self._acknowledge(row)
        self._over(row, now, status)

    # Internals

    def _hand_over(self, event: simpy.Event) -> None:
        """Route the requests that reach the decoders' router now, in trace order."""
        now = int(self._environment.now)
        while self._ready and self._ready[0][0] <= now:
            row = heappop(self._ready)[1]
            leaves = self._fleet.leaves(row)
            if leaves is not None and leaves <= now:
                self._over(row, leaves, Status.ABORTED)  # no decoder learns of it, so the lease ends
            else:
                self._known.add(row)
                self._decode.route(self._fleet.whole.index_of(row), now)

    def _acknowledge(self, row: int) -> None:
        """Tell the prefiller that a request's blocks have arrived, or are not wanted."""
        self._known.discard(row)
        self._let_go(row)

    def _let_go(self, row: int) -> None:
        """Let the prefiller release a request's blocks."""
        if row in self._held:
            self._held.remove(row)
            prefiller = self._prefill.replicas[self._prefill.went_to[row]]
            assert isinstance(prefiller, Prefiller)
            prefiller.acknowledge(row, int(self._environment.now))

    def _end_lease(self, row: int) -> Events:
        yield ArrivalEvent(self._environment, self._lease * TICKS_PER_SECOND)
        is_renewed = row in self._known and self._lease * 2 // 3 > 0
        if row in self._held and not is_renewed:
            self.pulls.outcomes["lease_ended"] += 1
            self._let_go(row)

"""Replaying a cluster: all replicas on one clock, or each by itself where the router looks at none."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

import numpy as np
import simpy

from pagesim.accounting.records import RequestLog
from pagesim.errors import PagesimError
from pagesim.experiments.clusters.engine import Replica, Routed
from pagesim.experiments.clusters.replicas import Replicas
from pagesim.experiments.clusters.routers import Router
from pagesim.setup.prepare import PreparedSystem, ProgressCallback, ProgressObserver, Server
from pagesim.setup.requests import aborts
from pagesim.workloads.trace import IntColumn, Trace

Replayed = tuple[list[Server], IntColumn]
"""The replicas, and which of them each request went to, ``[N]``; -1 where it was rejected."""


class _ArrivalEvent(simpy.Event):
    """The instant of an arrival: routed before anything else happens that is due at the same instant."""

    def __init__(self, environment: simpy.Environment, delay: int) -> None:
        super().__init__(environment)
        self._ok = True
        self._value = None
        environment.schedule(self, priority=simpy.events.URGENT, delay=delay)


def replay_together(
    setting: PreparedSystem, log: RequestLog, router: Router, replicas: int, progress: ProgressCallback | None
) -> Replayed:
    """Replay all replicas on one clock, so that the router sees what they do.

    Args:
        setting: what they have in common.
        log: where requests' times go.
        router: asked at each arrival.
        replicas: how many.
        progress: for a progress bar.

    Raises:
        PagesimError: the router answers nonsense.
    """
    whole = setting.arrivals()
    states = Replicas(replicas)
    prompts = setting.trace.prompt_tokens.tolist()
    servers: list[Server] = []
    fleet: list[Replica] = []
    for number, counting in enumerate(_progress(progress, replicas)):
        replica = Replica(number, states, Routed(whole), prompts)
        servers.append(Server(setting, log, replica.routed, observers=[replica, *counting]))
        fleet.append(replica)
    replica_of = np.full(len(setting.trace), -1, np.int64)
    leaves = {row: when for when, row in aborts(setting.trace, setting.system.client_timeout)}
    environment = simpy.Environment()

    def route() -> Generator[simpy.Event]:
        now = 0
        for index, (row, ticks) in enumerate(zip(whole.row, whole.ticks, strict=True)):
            if ticks > now:
                yield _ArrivalEvent(environment, ticks - now)
                now = ticks
            replica_of[row] = number = _chosen(router, setting.trace, row, states, now)
            fleet[number].submit(index, row, now, leaves.get(row))
        for replica in fleet:
            replica.close()

    for replica, server in zip(fleet, servers, strict=True):
        replica.start(environment, server.engine)
    environment.process(route())
    environment.run()
    for server in servers:
        server.engine.end()
    return servers, replica_of


def replay_apart(
    setting: PreparedSystem, log: RequestLog, router: Router, replicas: int, progress: ProgressCallback | None
) -> Replayed:
    """Replay one replica after the other: the same, in a third of the time, where the router is oblivious.

    An engine that knows what will arrive need not be asked at each arrival of the whole cluster.

    Args, Raises:
        see `replay_together`.
    """
    whole = setting.arrivals()
    states = Replicas(replicas)
    replica_of = np.full(len(setting.trace), -1, np.int64)
    routed = [Routed(whole) for _ in range(replicas)]
    for index, (row, ticks) in enumerate(zip(whole.row, whole.ticks, strict=True)):
        replica_of[row] = number = _chosen(router, setting.trace, row, states, ticks)
        routed[number].add(index)
    leaving: list[list[tuple[int, int]]] = [[] for _ in range(replicas)]
    for when, row in aborts(setting.trace, setting.system.client_timeout):
        if replica_of[row] >= 0:
            leaving[replica_of[row]].append((when, row))
    servers = []
    for arrivals, leaves, counting in zip(routed, leaving, _progress(progress, replicas), strict=True):
        server = Server(setting, log, arrivals, aborts=leaves, observers=counting)
        server.engine.replay()
        servers.append(server)
    return servers, replica_of


def _progress(progress: ProgressCallback | None, replicas: int) -> list[list[ProgressObserver]]:
    """Return observers of each replica that together call ``progress`` with the number of ended requests."""
    if progress is None:
        return [[]] * replicas
    over = [0] * replicas

    def callback(number: int, there: int) -> None:
        over[number] = there
        progress(sum(over))

    return [[ProgressObserver(partial(callback, number))] for number in range(replicas)]


def _chosen(router: Router, trace: Trace, row: int, states: Replicas, now: int) -> int:
    """Return the replica that the router chooses for a request."""
    number = router.choose(trace[row], states, now)
    if not 0 <= number < len(states):
        raise PagesimError(
            f"router {type(router).__name__} chose replica {number}; it must be from 0 to {len(states) - 1}"
        )
    return number

"""Replaying a cluster: all replicas on one clock, or each by itself where the router looks at none."""

from __future__ import annotations

from functools import partial

import numpy as np
import simpy

from pagesim.accounting.request_log import RequestLog
from pagesim.errors import PagesimError
from pagesim.experiments.clusters.engine import Replica
from pagesim.experiments.clusters.replicas import Replicas
from pagesim.experiments.clusters.routers import Router
from pagesim.scheduling.added import AddedArrivals
from pagesim.setup.prepare import PreparedSystem
from pagesim.setup.server import ProgressCallback, ProgressObserver, Server
from pagesim.sim.sending import ClosedLoop, send_at
from pagesim.workloads.trace import IntColumn, Trace

Replayed = tuple[list[Server], IntColumn]
"""The replicas, and which of them each request went to, ``[N]``; -1 where it was rejected."""


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
    whole = setting.requests()
    clients = setting.clients()
    environment = simpy.Environment()
    loop = None
    if clients is not None:
        log.sent, log.due = clients.sent, clients.due
        loop = ClosedLoop(environment, clients)
    states = Replicas(replicas)
    prompts = setting.trace.prompt_tokens.tolist()
    servers: list[Server] = []
    fleet: list[Replica] = []
    for number, counting in enumerate(_progress(progress, replicas)):
        tell = None if loop is None else loop.request_ended
        replica = Replica(number, states, AddedArrivals(whole), prompts, tell)
        servers.append(Server(setting, log, replica.routed, observers=[replica, *counting]))
        fleet.append(replica)
    replica_of = np.full(len(setting.trace), -1, np.int64)
    leaves = {row: when for when, row in setting.aborts()}

    def route(index: int, now: int) -> None:
        row = whole.row[index]
        replica_of[row] = number = chosen(router, setting.trace, row, states, now)
        fleet[number].submit(index, row, now, leaves.get(row) if clients is None else clients.abort_time(row))

    for replica, server in zip(fleet, servers, strict=True):
        replica.start(environment, server.engine)
    if loop is None:
        send_at(environment, whole.ticks, route)
    else:
        loop.start(route)
    environment.run()
    for replica in fleet:
        replica.end()
    return servers, replica_of


def replay_apart(
    setting: PreparedSystem, log: RequestLog, router: Router, replicas: int, progress: ProgressCallback | None
) -> Replayed:
    """Replay one replica after the other: the same, in a third of the time, where the router is oblivious.

    An engine that knows what will arrive need not be asked at each arrival of the whole cluster.

    Args, Raises:
        see `replay_together`.
    """
    whole = setting.requests()
    states = Replicas(replicas)
    replica_of = np.full(len(setting.trace), -1, np.int64)
    routed = [AddedArrivals(whole) for _ in range(replicas)]
    for index, (row, ticks) in enumerate(zip(whole.row, whole.ticks, strict=True)):
        replica_of[row] = number = chosen(router, setting.trace, row, states, ticks)
        routed[number].add(index, ticks)
    leaving: list[list[tuple[int, int]]] = [[] for _ in range(replicas)]
    for when, row in setting.aborts():
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


def chosen(router: Router, trace: Trace, row: int, states: Replicas, now: int) -> int:
    """Return the replica that the router chooses for a request."""
    number = router.choose(trace[row], states, now)
    if not 0 <= number < len(states):
        raise PagesimError(
            f"router {type(router).__name__} chose replica {number}; it must be from 0 to {len(states) - 1}"
        )
    return number

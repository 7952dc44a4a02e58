"""A fleet: engines on one clock, grouped in pools behind routers, and the clients that send requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import simpy

from pagesim.accounting.request_log import RequestLog
from pagesim.errors import PagesimError
from pagesim.experiments.clusters.engine import Replica
from pagesim.experiments.clusters.replicas import Replicas
from pagesim.experiments.clusters.routers import Router
from pagesim.scheduling.added import AddedArrivals
from pagesim.scheduling.failure_modes import StrictCompatError
from pagesim.scheduling.observer import Observer
from pagesim.setup.prepare import PreparedSystem
from pagesim.setup.server import Consume, ProgressCallback, ProgressObserver, Server
from pagesim.sim.clock import BEYOND_THE_CLOCK
from pagesim.sim.sending import ClosedLoop, send_at
from pagesim.workloads.trace import IntColumn

MOST_REPLICAS = 4096

Watch = Callable[[int, AddedArrivals], tuple[Sequence[Observer], Sequence[Consume]]]
"""Returns a replica's observers and the consumers of its records, given its number and its requests."""


def no_watch(number: int, routed: AddedArrivals) -> tuple[Sequence[Observer], Sequence[Consume]]:
    """Return no observers and no consumers."""
    return (), ()


class Fleet:
    """Engines on one clock, so that routers can see their state, and the clients that send requests.

    Args:
        setting: what all engines have in common.
        log: log for the times at which clients send.

    Attributes:
        environment: simulation environment with the clock.
        whole: accepted requests.
        prompts: prompt tokens of every trace row.
    """

    def __init__(self, setting: PreparedSystem, log: RequestLog) -> None:
        self.setting = setting
        self.environment = simpy.Environment()
        self.whole = setting.requests()
        self.prompts: list[int] = setting.trace.prompt_tokens.tolist()
        self._clients = setting.clients()
        self._loop = None
        if self._clients is not None:
            log.sent, log.due = self._clients.sent, self._clients.due
            self._loop = ClosedLoop(self.environment, self._clients)
        self._leaving = {row: when for when, row in setting.aborts()}
        self._started: list[tuple[Replica, Server]] = []

    @property
    def tell(self) -> Callable[[int, int], None] | None:
        """Callback for finished requests, with their row and the time; None without a closed loop."""
        return None if self._loop is None else self._loop.request_ended

    def leaves(self, row: int) -> int | None:
        """Return when the client of a trace row disconnects, in ticks; None if it does not."""
        return self._leaving.get(row) if self._clients is None else self._clients.abort_time(row)

    def add(self, replica: Replica, setting: PreparedSystem, log: RequestLog, **how: Any) -> Server:
        """Start an engine; return its server.

        Args:
            replica: process that runs the engine and observes it.
            setting: system of its pool.
            log: log for its requests' times.
            **how: further options of `Server`.
        """
        observers = [replica, *how.pop("observers", ())]
        server = Server(setting, log, replica.routed, observers=observers, **how)
        replica.start(self.environment, server.engine)
        self._started.append((replica, server))
        return server

    def run(self, pool: ReplicaPool) -> None:
        """Replay the whole trace, with requests arriving at a pool.

        Raises:
            PagesimError: the router returns nonsense, a system with ``strict_compat`` stopped, or the run is
                longer than the clock.
        """
        if self._loop is None:
            send_at(self.environment, self.whole.ticks, pool.route)
        else:
            self._loop.start(pool.route)
        try:
            self.environment.run()
        except StrictCompatError as error:
            raise self.setting.stopped(error) from None
        except BEYOND_THE_CLOCK:
            raise self.setting.too_long() from None
        for replica, server in self._started:
            replica.end()
            server.end()


class ReplicaPool:
    """Replicas of a fleet behind a router.

    Args:
        fleet: the replicas' fleet.
        router: router to ask about each request.
        size: number of replicas.

    Attributes:
        states: what the router may know of the replicas.
        replicas: the replicas added so far.
        went_to: replica of each trace row, ``[N]``; -1 for none.
    """

    def __init__(self, fleet: Fleet, router: Router, size: int) -> None:
        self.states = Replicas(size)
        self.replicas: list[Replica] = []
        self.went_to: IntColumn = np.full(len(fleet.setting.trace), -1, np.int64)
        self._fleet = fleet
        self._router = router

    def known(self) -> tuple[int, Replicas, AddedArrivals, list[int], Callable[[int, int], None] | None]:
        """Return the arguments of the next `Replica` to add."""
        fleet = self._fleet
        return len(self.replicas), self.states, AddedArrivals(fleet.whole), fleet.prompts, fleet.tell

    def add(self, replica: Replica, setting: PreparedSystem, log: RequestLog, **how: Any) -> Server:
        """Add a replica and start its engine, as `Fleet.add`; return its server."""
        self.replicas.append(replica)
        return self._fleet.add(replica, setting, log, **how)

    def route(self, index: int, now: int) -> None:
        """Submit a request to the replica that the router chooses.

        Args:
            index: index of the request among the accepted ones.
            now: current time, in ticks.

        Raises:
            PagesimError: the router returns nonsense.
        """
        row = self._fleet.whole.row[index]
        number = self._router.choose(self._fleet.setting.trace[row], self.states, now)
        if not 0 <= number < len(self.states):
            raise PagesimError(
                f"router {type(self._router).__name__} chose replica {number}; it must be from 0 to "
                f"{len(self.states) - 1}"
            )
        self.went_to[row] = number
        self.replicas[number].submit(index, row, now, self._fleet.leaves(row))


class Deployment:
    """Replicas of a system behind a router, which can be replayed once.

    Args:
        setting: what the replicas have in common.
        log: log for the requests' times.
        router: router to ask at each arrival.
        size: number of replicas.
        watch: see `Watch`.
        progress: callback for a progress bar.

    Attributes:
        servers: the replicas' engines with their accounting.
    """

    def __init__(
        self,
        setting: PreparedSystem,
        log: RequestLog,
        router: Router,
        size: int,
        *,
        watch: Watch = no_watch,
        progress: ProgressCallback | None = None,
    ) -> None:
        self.servers: list[Server] = []
        self._fleet = Fleet(setting, log)
        self._pool = ReplicaPool(self._fleet, router, size)
        self._log, self._watch = log, watch
        # One observer counts the ended requests of all replicas.
        self._counting = [] if progress is None else [ProgressObserver(progress)]

    def add(self, replica: Replica, setting: PreparedSystem, **how: Any) -> None:
        """Add a replica, with further options of its `Server`."""
        observers, consume = self._watch(len(self.servers), replica.routed)
        observing = [*observers, *self._counting]
        self.servers.append(
            self._pool.add(replica, setting, self._log, observers=observing, consume=consume, **how)
        )

    @property
    def went_to(self) -> IntColumn:
        """The replica of each trace row, ``[N]``; -1 for none."""
        return self._pool.went_to

    def replay(self) -> None:
        """Replay the whole trace.

        Raises:
            PagesimError: as `Fleet.run`.
        """
        self._fleet.run(self._pool)

    def summary(self) -> dict[str, Any]:
        """Return what a summary says of the replicas besides their load."""
        return {}


def independent_replicas(
    setting: PreparedSystem,
    log: RequestLog,
    router: Router,
    size: int,
    progress: ProgressCallback | None = None,
) -> Deployment:
    """Return replicas that know nothing of each other; see `Deployment`."""
    deployment = Deployment(setting, log, router, size, progress=progress)
    for _ in range(size):
        deployment.add(Replica(*deployment._pool.known()), setting)
    return deployment

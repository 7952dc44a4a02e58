"""A fleet: engines on one clock, in pools behind routers, and the clients that send to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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


class Fleet:
    """Engines on one clock, so that routers see what they do, and the clients that send to them.

    Args:
        setting: what all engines have in common.
        log: where the times are noted at which clients send.

    Attributes:
        environment: the clock.
        whole: the requests that were accepted.
        prompts: prompt tokens of every row of the trace.
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
        """What a request that is over is told to, by its row and the instant; None without a closed loop."""
        return None if self._loop is None else self._loop.request_ended

    def leaves(self, row: int) -> int | None:
        """Return when the client of a row goes away, in ticks; None if it does not."""
        return self._leaving.get(row) if self._clients is None else self._clients.abort_time(row)

    def add(
        self,
        replica: Replica,
        setting: PreparedSystem,
        log: RequestLog,
        *,
        observers: Sequence[Observer] = (),
        consume: Sequence[Consume] = (),
        tables: bool = False,
        lock_step: bool = False,
    ) -> Server:
        """Start an engine; return it.

        Args:
            replica: which runs it.
            setting: of its pool.
            log: where its requests' times go.
            observers: further ones.
            consume: what takes in its records.
            tables: as `Server`.
            lock_step: as `Server`.
        """
        server = Server(
            setting,
            log,
            replica.routed,
            observers=[replica, *observers],
            consume=consume,
            tables=tables,
            lock_step=lock_step,
        )
        replica.start(self.environment, server.engine)
        self._started.append((replica, server))
        return server

    def run(self, pool: ReplicaPool) -> None:
        """Replay everything; requests arrive at a pool.

        Raises:
            PagesimError: the router answers nonsense, a system with ``strict_compat`` stopped, or the run is
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
        fleet: of which they are.
        router: asked about each request.
        size: replicas.

    Attributes:
        states: what the router may know of them.
        replicas: to be filled.
        went_to: which of them each row went to, ``[N]``; -1 for none.
    """

    def __init__(self, fleet: Fleet, router: Router, size: int) -> None:
        self.states = Replicas(size)
        self.replicas: list[Replica] = []
        self.went_to: IntColumn = np.full(len(fleet.setting.trace), -1, np.int64)
        self._fleet = fleet
        self._router = router

    def route(self, index: int, now: int) -> None:
        """Submit a request to the replica that the router chooses.

        Args:
            index: of the request among the accepted ones.
            now: ticks.

        Raises:
            PagesimError: the router answers nonsense.
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


def replay_together(
    setting: PreparedSystem, log: RequestLog, router: Router, replicas: int, progress: ProgressCallback | None
) -> tuple[list[Server], IntColumn]:
    """Replay replicas of a system behind a router; return them, and which of them each row went to.

    Args:
        setting: what they have in common.
        log: where requests' times go.
        router: asked at each arrival.
        replicas: how many.
        progress: for a progress bar.

    Raises:
        PagesimError: the router answers nonsense.
    """
    fleet = Fleet(setting, log)
    pool = ReplicaPool(fleet, router, replicas)
    servers = []
    for number, counted in enumerate(counting(progress, replicas)):
        replica = Replica(number, pool.states, AddedArrivals(fleet.whole), fleet.prompts, fleet.tell)
        pool.replicas.append(replica)
        servers.append(fleet.add(replica, setting, log, observers=counted))
    fleet.run(pool)
    return servers, pool.went_to


def counting(progress: ProgressCallback | None, replicas: int) -> list[list[ProgressObserver]]:
    """Return observers of each replica that together call ``progress`` with the number of ended requests."""
    return [[] if progress is None else [ProgressObserver(progress)]] * replicas

"""A replica of a cluster: an engine that learns of its requests only when they are routed to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pagesim.experiments.clusters.replicas import Replicas, ReplicaState
from pagesim.scheduling.added import AddedArrivals
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.request import Status
from pagesim.sim.process import EngineProcess


class Replica(EngineProcess):
    """Runs one engine of a cluster, and updates the router's view of its requests.

    Args:
        number: index of the replica.
        replicas: the router's view of all replicas.
        routed: arrivals that its scheduler reads.
        prompts: prompt tokens of every trace row.
        tell: called in a closed loop when a request has finished, with its row and the time.
    """

    routed: AddedArrivals

    def __init__(
        self,
        number: int,
        replicas: Replicas,
        routed: AddedArrivals,
        prompts: Sequence[int],
        tell: Callable[[int, int], None] | None = None,
    ) -> None:
        super().__init__(routed, turn=number, tell=tell)
        self._replicas = replicas
        self._prompts = prompts
        self._never_ran: set[int] = set()  # rows
        replicas.ask[number] = self._says

    # Observed events of requests

    def planned(self, batch: Batch, now: int, start: int, ticks: int) -> None:
        for request in batch.prompts:
            self._waits_no_longer(request.row)

    def left(self, row: int, now: int, status: Status) -> None:
        super().left(row, now, status)
        self._waits_no_longer(row)

    def _ended(self, row: int, now: int) -> None:
        self._replicas.outstanding[self._turn] -= 1
        super()._ended(row, now)

    def _waits_no_longer(self, row: int) -> None:
        if row in self._never_ran:
            self._never_ran.remove(row)
            self._replicas.waiting_tokens[self._turn] -= self._prompts[row]

    # On the cluster's clock

    def submit(self, index: int, row: int, now: int, abort: int | None) -> None:
        self._never_ran.add(row)
        self._replicas.outstanding[self._turn] += 1
        self._replicas.waiting_tokens[self._turn] += self._prompts[row]
        super().submit(index, row, now, abort)

    def _says(self) -> ReplicaState:
        scheduler, run = self.engine.scheduler, self.engine.run
        if not self._busy:  # it is idle or about to decide
            return ReplicaState(scheduler.context, int(self._environment.now), (0, 0, 0, 0), 0)
        if not run.steps:
            return ReplicaState(scheduler.context, self.engine.over_at, (0, 0, 0, 0), 0)
        if scheduler.in_flight == 1:
            steps = run.steps, run.first, run.increment, run.context
            return ReplicaState(scheduler.context, run.start, steps, run.sequences)
        # The first step has already been planned; the second is planned when the first begins.
        steps = run.steps - 1, run.first, run.increment, run.context + run.sequences
        return ReplicaState(run.context + scheduler.draining_context, run.start, steps, run.sequences)

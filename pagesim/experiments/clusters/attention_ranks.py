"""SGLang's attention DP: ranks with a queue and a cache each, whose turns are one turn, on one clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, cast

import simpy

from pagesim.accounting.pass_recorder import PassRecorder
from pagesim.accounting.request_log import RequestLog
from pagesim.costs import IterationShape
from pagesim.errors import PagesimError
from pagesim.experiments.clusters.data_parallel import Watch, no_watch
from pagesim.experiments.clusters.engine import Replica
from pagesim.experiments.clusters.fleet import Fleet, ReplicaPool, counting
from pagesim.experiments.clusters.routers import RoundRobin, Router
from pagesim.scheduling.added import AddedArrivals
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.sglang.attention_group import AttentionGroup, SglangRank
from pagesim.scheduling.sglang.options import SglangOptions
from pagesim.setup.prepare import PreparedSystem
from pagesim.setup.server import ProgressCallback, Server
from pagesim.sim.executor import shape_of
from pagesim.sim.process import Decision, Events, start
from pagesim.workloads.trace import IntColumn

MOST_EMPTY_TURNS = 300
"""Turns of no length that ranks take while prompts are held back and nothing runs."""


class AttentionRank(Replica):
    """One rank: an engine that decides when all of them do.

    Args:
        others: as `Replica`.
        turns: of all ranks.
    """

    def __init__(self, *others: Any, turns: AttentionTurns) -> None:
        super().__init__(*others)
        self._turns = turns

    def start(self, environment: simpy.Environment, engine: Any) -> simpy.Process:
        self.engine = engine
        self._environment = environment
        return self._turns.join(self, environment)

    def end(self) -> None:
        self._tell = None
        self.engine.end(self._turns.ends)

    def _wake(self) -> None:
        self._turns.wake()


class AttentionTurns:
    """Runs the engines of all ranks: they decide together, and a forward pass takes as long as the longest.

    Source: SGLang 0.5.23, ``srt/managers/scheduler.py``, ``event_loop_overlap`` and ``event_loop_normal``.

    Args:
        size: how many ranks there are.

    Attributes:
        ends: when each forward pass in flight is over, in ticks.
        passes: how many there were.
        dummies: how many empty batches ranks ran beside others.
        waves: how often they began to work.
    """

    def __init__(self, size: int) -> None:
        self.ends: deque[int] = deque()
        self.passes = self.dummies = self.waves = 0
        self._size = size
        self._ranks: list[AttentionRank] = []
        self._last_end = 0
        self._idle: simpy.Event | None = None

    def join(self, rank: AttentionRank, environment: simpy.Environment) -> simpy.Process:
        """Take a rank in; return the process of all."""
        self._ranks.append(rank)
        if len(self._ranks) == 1:
            self._environment = environment
            self._process = start(environment, self._run())
        return self._process

    def wake(self) -> None:
        """Say that a request has arrived at a rank."""
        if self._idle is not None:
            self._idle.succeed()
            self._idle = None

    def _run(self) -> Events:
        environment, engines = self._environment, [rank.engine for rank in self._ranks]
        assert len(engines) == self._size
        group = AttentionGroup([cast(SglangRank, engine.scheduler) for engine in engines])
        depth, empty_turns, was_idle = engines[0].scheduler.in_flight, 0, True
        while environment.now <= engines[0].until:
            now = int(environment.now)
            for engine in engines:
                engine.settle(now)
            batches = group.turn(now, was_idle=was_idle)
            for engine in engines:
                engine.decide(now)
            self.waves += was_idle and bool(batches)
            self._launch(batches, now)
            was_idle = not (batches or self.ends)
            if batches and len(self.ends) < depth:
                continue
            if self.ends:
                empty_turns = 0
                yield from self._complete()
            elif group.waits and empty_turns < MOST_EMPTY_TURNS:
                empty_turns += 1
            else:
                empty_turns = 0
                self._idle = environment.event()
                yield self._idle
                yield Decision(environment, 0)

    def _launch(self, batches: Sequence[Batch], now: int) -> None:
        """Carry the batches of a turn out behind those in flight; nothing where there are none."""
        if not batches:
            return
        ticks = self._ranks[0].engine.executor.execute(cast(Any, largest(batches)))
        begin = max(now, self._last_end)
        self._last_end = begin + ticks
        self.ends.append(self._last_end)
        self.passes += 1
        self.dummies += sum(not batch.tokens for batch in batches)
        for rank in self._ranks:
            recorder = rank.engine.recorder
            assert isinstance(recorder, PassRecorder)
            recorder.timed(begin, ticks)

    def _complete(self) -> Events:
        """Wait until the oldest forward pass in flight is over, and let its results be processed."""
        environment, end = self._environment, self.ends[0]
        yield Decision(environment, max(0, end - int(environment.now)))
        self.ends.popleft()
        for rank in self._ranks:
            rank.engine.complete(int(environment.now))
            recorder = rank.engine.recorder
            if recorder.iterations >= recorder.full_at:
                recorder.flush()
        yield Decision(environment, 0)  # what is sent because others are over may arrive at once


class AttentionDataParallel:
    """The ranks of attention DP, to be replayed once; requests go to them in turn.

    Args:
        setting: what they have in common.
        log: where requests' times go.
        watch: returns what observes a rank, and takes in its records.
        progress: for a progress bar.

    Attributes:
        servers: the ranks' engines with their accounts.
    """

    def __init__(
        self,
        setting: PreparedSystem,
        log: RequestLog,
        *,
        watch: Watch = no_watch,
        progress: ProgressCallback | None = None,
    ) -> None:
        options = setting.config.options
        assert isinstance(options, SglangOptions)
        size = options.attn_dp_size
        self._fleet = fleet = Fleet(setting, log)
        self._pool = ReplicaPool(fleet, RoundRobin(), size)
        self._turns = AttentionTurns(size)
        self.servers: list[Server] = []
        for number, counted in enumerate(counting(progress, size)):
            routed = AddedArrivals(fleet.whole)
            rank = AttentionRank(
                *(number, self._pool.states, routed, fleet.prompts, fleet.tell), turns=self._turns
            )
            self._pool.replicas.append(rank)
            observers, consume = watch(number, routed)
            observing = [*observers, *counted]
            self.servers.append(
                fleet.add(rank, setting, log, observers=observing, consume=consume, lock_step=True)
            )

    @property
    def went_to(self) -> IntColumn:
        """The rank that each row went to, ``[N]``; -1 for none."""
        return self._pool.went_to

    def replay(self) -> None:
        """Replay everything.

        Raises:
            PagesimError: as `Fleet.run`.
        """
        self._fleet.run(self._pool)

    def summary(self) -> dict[str, Any]:
        """Return how often the ranks ran, together and without any request."""
        turns = self._turns
        found = {"passes": turns.passes, "dummy_batches": turns.dummies, "waves": turns.waves}
        return {"lock_step": found}


def check_round_robin(setting: PreparedSystem, router: str | Router | None) -> str:
    """Return what SGLang's own balancing over replicas or ranks is called in a summary.

    Raises:
        PagesimError: another router is given beside it.
    """
    if router not in (None, "round-robin"):
        raise PagesimError(
            f"router is {router}; SGLang sends requests to its replicas and ranks in turn: leave it out, or "
            "give replicas in place of dp_size"
        )
    return "SGLang's round robin"


def largest(batches: Sequence[Batch]) -> IterationShape:
    """Return what takes as long as batches whose GPUs wait for each other in every layer.

    That is the most of everything that any of them computes.
    """
    fields = zip(*[shape_of(batch) for batch in batches], strict=True)
    return IterationShape._make(
        [_most(field) if isinstance(field[0], tuple) else max(field) for field in fields]
    )


def _most(spans: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the most tokens within each span; of a batch that says none of them, none."""
    return tuple(max(each) for each in zip(*[own for own in spans if own], strict=True))

"""SGLang's attention DP: ranks with their own queues and caches, which take their steps together."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, cast

import simpy

from pagesim.accounting.pass_recorder import PassRecorder
from pagesim.accounting.request_log import RequestLog
from pagesim.costs import IterationShape
from pagesim.errors import PagesimError
from pagesim.experiments.clusters.engine import Replica
from pagesim.experiments.clusters.fleet import Deployment, Watch, no_watch
from pagesim.experiments.clusters.routers import RoundRobin, Router
from pagesim.scheduling.arrivals import NEVER
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.sglang.attention_group import AttentionGroup, SglangRank
from pagesim.scheduling.sglang.hicache import HiCacheController
from pagesim.scheduling.sglang.options import SglangOptions
from pagesim.setup.prepare import PreparedSystem
from pagesim.setup.server import ProgressCallback
from pagesim.sim.executor import shape_of
from pagesim.sim.process import Decision, Events, start

MOST_EMPTY_TURNS = 300
"""Maximum number of consecutive turns without a batch while prompts are held back and nothing runs."""


class AttentionRank(Replica):
    """One rank: an engine that makes its decisions together with all other ranks.

    Args:
        others: as `Replica`.
        turns: event loop shared by all ranks.
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
    """Runs the engines of all ranks: they decide together, and a forward pass takes as long as the slowest.

    Source: SGLang 0.5.23, ``srt/managers/scheduler.py``, ``event_loop_overlap`` and ``event_loop_normal``.

    Args:
        size: number of ranks.

    Attributes:
        ends: when each forward pass in flight finishes, in ticks.
        passes: number of forward passes.
        dummies: number of empty batches that ranks ran alongside the others' batches.
        waves: number of times that the ranks started working after being idle.
        waited: ticks for which each forward pass waited for loads from the host; empty without one.
    """

    def __init__(self, size: int) -> None:
        self.ends: deque[int] = deque()
        self.passes = self.dummies = self.waves = 0
        self.waited: list[int] = []
        self._size = size
        self._ranks: list[AttentionRank] = []
        self._last_end = 0
        self._idle: simpy.Event | None = None
        self._hosts: list[HiCacheController] = []

    def join(self, rank: AttentionRank, environment: simpy.Environment) -> simpy.Process:
        """Add a rank; return the process that runs all ranks."""
        self._ranks.append(rank)
        if len(self._ranks) == 1:
            self._environment = environment
            self._process = start(environment, self._run())
        return self._process

    def wake(self) -> None:
        """Signal that a request has arrived at a rank."""
        if self._idle is not None:
            self._idle.succeed()
            self._idle = None

    def _run(self) -> Events:
        environment, engines = self._environment, [rank.engine for rank in self._ranks]
        assert len(engines) == self._size
        ranks = [cast(SglangRank, engine.scheduler) for engine in engines]
        self._hosts = [rank.hicache for rank in ranks if rank.hicache is not None]
        group = AttentionGroup(ranks)
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
                copied = min([host.next_end for host in self._hosts], default=NEVER)
                yield self._idle if copied == NEVER else self._idle | environment.timeout(copied - now)
                self._idle = None
                yield Decision(environment, 0)

    def _launch(self, batches: Sequence[Batch], now: int) -> None:
        """Queue a turn's batches behind those in flight; do nothing if there are none."""
        if not batches:
            return
        ticks = self._ranks[0].engine.executor.execute(cast(Any, largest(batches)))
        begin = max(now, self._last_end)
        self._last_end = begin + ticks
        hosts = self._hosts
        if hosts:  # in every layer all wait for the slowest load
            self._last_end = max([host.launched(begin + ticks) for host in hosts])
            self.waited.append(self._last_end - begin - ticks)
            ticks = self._last_end - begin
        for host in hosts:
            host.busy_until = self._last_end
        self.ends.append(self._last_end)
        self.passes += 1
        self.dummies += sum(not batch.tokens for batch in batches)
        for rank in self._ranks:
            recorder = rank.engine.recorder
            assert isinstance(recorder, PassRecorder)
            recorder.timed(begin, ticks)

    def _complete(self) -> Events:
        """Wait until the oldest forward pass in flight has finished, then process its results."""
        environment, end = self._environment, self.ends[0]
        yield Decision(environment, max(0, end - int(environment.now)))
        self.ends.popleft()
        for rank in self._ranks:
            rank.engine.complete(int(environment.now))
            recorder = rank.engine.recorder
            if recorder.iterations >= recorder.full_at:
                recorder.flush()
        yield Decision(environment, 0)  # requests sent because others finished may arrive at once


class AttentionDataParallel(Deployment):
    """The ranks of attention DP; requests go to them in turn.

    Args:
        setting: what the ranks have in common.
        log: log for the requests' times.
        watch: see `Watch`.
        progress: callback for a progress bar.

    Attributes:
        turns: the event loop that the ranks share.
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
        super().__init__(setting, log, RoundRobin(), size, watch=watch, progress=progress)
        self.turns = AttentionTurns(size)
        for _ in range(size):
            self.add(AttentionRank(*self._pool.known(), turns=self.turns), setting, lock_step=True)

    def summary(self) -> dict[str, Any]:
        """Return how many passes, dummy batches and waves the ranks ran."""
        turns = self.turns
        found = {"passes": turns.passes, "dummy_batches": turns.dummies, "waves": turns.waves}
        return {"lock_step": found}


def check_round_robin(setting: PreparedSystem, router: str | Router | None) -> str:
    """Return the name of SGLang's own balancing over replicas or ranks, for a summary.

    Raises:
        PagesimError: another router is given.
    """
    if router not in (None, "round-robin"):
        raise PagesimError(
            f"router is {router}; SGLang sends requests to its replicas and ranks in turn: leave it out, or "
            "give replicas in place of dp_size"
        )
    return "SGLang's round robin"


def largest(batches: Sequence[Batch]) -> IterationShape:
    """Return a shape that takes as long as batches whose GPUs wait for each other in every layer.

    It is the maximum over the batches of each thing they compute.
    """
    fields = zip(*[shape_of(batch) for batch in batches], strict=True)
    return IterationShape._make(
        [_most(field) if isinstance(field[0], tuple) else max(field) for field in fields]
    )


def _most(spans: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the most tokens within each span; batches without spans are ignored."""
    return tuple(max(each) for each in zip(*[own for own in spans if own], strict=True))

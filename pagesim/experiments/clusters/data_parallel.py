"""vLLM's data parallelism: ranks of one deployment behind its own load balancer, on one clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pagesim.accounting.request_log import RequestLog
from pagesim.errors import PagesimError
from pagesim.experiments.clusters.balancer import LoadBalancer
from pagesim.experiments.clusters.coordinator import Coordinator
from pagesim.experiments.clusters.fleet import Fleet, ReplicaPool
from pagesim.experiments.clusters.lock_step import LockStep, LockStepRank
from pagesim.experiments.clusters.messages import Messages
from pagesim.experiments.clusters.ranks import Rank, RankGroup
from pagesim.experiments.clusters.routers import Router
from pagesim.scheduling.added import AddedArrivals
from pagesim.scheduling.observer import Observer
from pagesim.scheduling.vllm_v1_options import VllmV1Options
from pagesim.setup.prepare import PreparedSystem
from pagesim.setup.server import Consume, Server
from pagesim.sim.clock import to_ticks
from pagesim.workloads.trace import IntColumn

SYNC_INTERVAL = 16
"""Steps after which ranks in lock-step agree on whether to go on, where that is left open."""

Watch = Callable[[int, AddedArrivals], tuple[Sequence[Observer], Sequence[Consume]]]
"""Returns what observes a rank, and takes in its records, by its number and its requests."""


@dataclass
class DataParallel:
    """Ranks of one deployment, to be replayed once.

    Args:
        setting: what they have in common.
        log: where requests' times go.
        router: in place of vLLM's load balancer, where that is ``external``.
        watch: as `Watch`.
        tables: whether blocks must have numbers.

    Attributes:
        servers: the ranks' engines with their accounts.
        ranks: what runs them.
        coordinator: what publishes what ranks have to do.
        balancer: of vLLM; None where a router takes its place.
        lock_step: of ranks of a model with experts; None of any other.
        went_to: the rank that each row went to, ``[N]``; -1 for none.
    """

    setting: PreparedSystem
    log: RequestLog
    router: Router | None = None
    watch: Watch = field(default=lambda number, routed: ((), ()))
    tables: bool = False

    def __post_init__(self) -> None:
        setting = self.setting
        options = options_of(setting)
        size = options.data_parallel_size or 1
        fleet = self._fleet = Fleet(setting, self.log)
        messages = Messages(fleet.environment, to_ticks(options.data_parallel_latency or 0.0))
        self.lock_step: LockStep | None = None
        if setting.config.model.moe is not None:
            self.lock_step = LockStep(fleet.environment, size, options.dp_sync_interval or SYNC_INTERVAL)
        self.coordinator = Coordinator(messages, size, lock_step=self.lock_step is not None)
        self.coordinator.start_wave = self._start_wave
        self.balancer: LoadBalancer | None = None
        router = self.router
        if options.data_parallel_lb != "external":
            local = size if options.data_parallel_lb != "hybrid" else options.data_parallel_size_local or size
            servers = options.api_server_count or local
            self.balancer = router = LoadBalancer(size, servers, size // local, setting.request_of)
            self.coordinator.publish = self.balancer.publish
        assert router is not None
        self._pool = ReplicaPool(fleet, router, size)
        group = RankGroup(messages, self.coordinator, self.balancer)
        self.servers: list[Server] = []
        self.ranks: list[Rank] = []
        for number in range(size):
            known = number, self._pool.states, AddedArrivals(fleet.whole), fleet.prompts, fleet.tell
            if self.lock_step is None:
                rank = Rank(*known, group=group)
            else:
                rank = LockStepRank(*known, group=group, lock_step=self.lock_step)
            self._pool.replicas.append(rank)
            self.ranks.append(rank)
            observers, consume = self.watch(number, rank.routed)
            server = fleet.add(
                rank,
                setting,
                self.log,
                observers=observers,
                consume=consume,
                tables=self.tables,
                lock_step=self.lock_step is not None,
            )
            self.servers.append(server)

    def _start_wave(self, wave: int, exclude: int) -> None:
        for rank in self.ranks:
            assert isinstance(rank, LockStepRank)
            rank.start_wave(wave, exclude)

    @property
    def went_to(self) -> IntColumn:
        return self._pool.went_to

    def replay(self) -> None:
        """Replay everything."""
        self._fleet.run(self._pool)


def options_of(setting: PreparedSystem) -> VllmV1Options:
    """Return the options of a deployment with data parallelism.

    Raises:
        PagesimError: they do not go together.
    """
    options = setting.config.options
    if not isinstance(options, VllmV1Options):
        raise PagesimError("data_parallel_size is for policy vllm-v1")
    return options

"""vLLM's data parallelism: the ranks of one deployment behind its own load balancer, on one clock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pagesim.accounting.request_log import RequestLog
from pagesim.errors import PagesimError
from pagesim.experiments.clusters.balancer import LoadBalancer, WholeRequests
from pagesim.experiments.clusters.coordinator import Coordinator
from pagesim.experiments.clusters.fleet import Deployment, Watch, no_watch
from pagesim.experiments.clusters.lock_step import LockStep, LockStepRank
from pagesim.experiments.clusters.messages import Messages
from pagesim.experiments.clusters.ranks import Rank, RankGroup
from pagesim.experiments.clusters.routers import RoundRobin, Router
from pagesim.scheduling.vllm_v1_options import VllmV1Options
from pagesim.setup.data_parallel import steps_together
from pagesim.setup.prepare import PreparedSystem
from pagesim.setup.server import ProgressCallback
from pagesim.sim.clock import to_ticks

SYNC_INTERVAL = 16
"""Default number of steps between the agreements of ranks in lock-step on whether to go on."""


class DataParallel(Deployment):
    """The ranks of one deployment of vLLM.

    Args:
        setting: what the ranks have in common.
        log: log for the requests' times.
        router: router in front of the ranks, with external load balancing; round-robin if omitted.
        watch: see `Watch`.
        tables: whether blocks need numbers.
        progress: callback for a progress bar.

    Attributes:
        ranks: the processes that run the engines.
        coordinator: publisher of the ranks' load.
        balancer: vLLM's load balancer; None if a router replaces it.
        lock_step: state shared by the ranks of an MoE model; None for any other model.

    Raises:
        PagesimError: options contradict each other.
    """

    def __init__(
        self,
        setting: PreparedSystem,
        log: RequestLog,
        router: Router | None = None,
        *,
        watch: Watch = no_watch,
        tables: bool = False,
        progress: ProgressCallback | None = None,
    ) -> None:
        options = setting.config.options
        assert isinstance(options, VllmV1Options)
        size, together = options.ranks, steps_together(setting.config.model, options)
        self.balancer = None if options.balancing == "external" else balancer_of(setting)
        of_all = self.balancer or WholeRequests(router or RoundRobin(), setting.request_of)
        super().__init__(setting, log, of_all, size, watch=watch, progress=progress)
        environment = self._fleet.environment
        messages = Messages(environment, to_ticks(options.data_parallel_latency or 0.0))
        self.coordinator = Coordinator(messages, size, lock_step=together)
        self.coordinator.start_wave = self._start_wave
        if self.balancer is not None:
            self.coordinator.publish = self.balancer.publish
        self.lock_step: LockStep | None = None
        if together:
            self.lock_step = LockStep(environment, size, options.dp_sync_interval or SYNC_INTERVAL)
        group = RankGroup(messages, self.coordinator, self.balancer)
        self.ranks: list[Rank] = []
        settings: dict[tuple[int, int], PreparedSystem] = {}
        for number in range(size):
            # Ranks differ where the experts cannot be split evenly.
            of_rank = replace(setting.config, other_cost=setting.config.cost, rank=number)
            held = of_rank.model.expert_shares(setting.config.system.tensor_parallel_size)
            if held not in settings:
                settings[held] = replace(setting, config=of_rank) if settings else setting
            if self.lock_step is None:
                rank = Rank(*self._pool.known(), group=group)
            else:
                rank = LockStepRank(*self._pool.known(), group=group, lock_step=self.lock_step)
            self.ranks.append(rank)
            self.add(rank, settings[held], tables=tables, lock_step=together)

    def summary(self) -> dict[str, Any]:
        """Return how many passes, dummy batches and waves ranks in lock-step ran; empty for other ranks."""
        if self.lock_step is None:
            return {}
        passes = self.lock_step.passes
        dummies = sum([sum(each.dummies) for each in passes])
        waves = len({each.wave for each in passes})
        return {"lock_step": {"passes": len(passes), "dummy_batches": dummies, "waves": waves}}

    def _start_wave(self, wave: int, exclude: int) -> None:
        for rank in self.ranks:
            assert isinstance(rank, LockStepRank)
            rank.start_wave(wave, exclude)


def balancer_of(setting: PreparedSystem) -> LoadBalancer:
    """Return the load balancer that a deployment's options describe."""
    options = setting.config.options
    assert isinstance(options, VllmV1Options)
    local = options.ranks
    if options.balancing == "hybrid":
        local = options.data_parallel_size_local or local
    servers = options.api_server_count or local
    return LoadBalancer(options.ranks, servers, options.ranks // local, setting.request_of)


def check_router(setting: PreparedSystem, router: str | Router | None) -> str:
    """Return the name of vLLM's balancer for a summary; empty if a router replaces it.

    Raises:
        PagesimError: a router is given although vLLM balances the load itself.
    """
    options = setting.config.options
    assert isinstance(options, VllmV1Options)
    if options.balancing == "external":
        return ""
    if router is not None:
        raise PagesimError(
            f"router is {router}, and data_parallel_size {options.ranks}: vLLM balances its ranks itself; "
            "leave it out, or give data_parallel_lb external"
        )
    return f"vLLM's {options.balancing} load balancing"

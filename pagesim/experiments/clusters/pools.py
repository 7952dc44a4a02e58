"""Pools: replaying prefill replicas and decode replicas on one clock."""

from __future__ import annotations

import copy
from array import array
from collections.abc import Callable
from dataclasses import dataclass, replace

from pagesim.accounting.request_log import RequestLog
from pagesim.errors import PagesimError
from pagesim.experiments.clusters.fleet import MOST_REPLICAS, Fleet, ReplicaPool
from pagesim.experiments.clusters.handover import Handover, Pulls
from pagesim.experiments.clusters.links import Ports, pull_link
from pagesim.experiments.clusters.pool_replicas import PoolReplica, Prefiller
from pagesim.experiments.clusters.routers import Router, find_router
from pagesim.hardware import Link, gpu
from pagesim.scheduling.added import AddedArrivals
from pagesim.scheduling.arrivals import Arrivals
from pagesim.scheduling.content import Content, Contents
from pagesim.scheduling.disaggregated import PrefillConnector, PullConnector
from pagesim.scheduling.request import Status
from pagesim.scheduling.traits import Pool as PoolName
from pagesim.setup.prepare import PreparedSystem
from pagesim.setup.scenario import LEASE_S
from pagesim.setup.server import Consume, ProgressCallback, Server
from pagesim.sim.clock import to_ticks
from pagesim.workloads.trace import Trace

MOST_S = 10**6
"""Maximum length of a lease and of a handover, in seconds."""

MakeAccount = Callable[[PreparedSystem, int, AddedArrivals], Consume]
"""Makes the consumer of a replica's chunks, given its pool's system, its index there and its requests."""


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """Two pools of replicas and the connection between them.

    Attributes:
        prefill, decode: number of replicas in each pool.
        prefill_router, decode_router: routers, asked when a request arrives and when its prefill is done.
        link: link of each GPU, as `pull_link` reads it.
        lease: seconds for which a prefiller holds blocks that no decoder asks for; 0 to hold none.
        handover: seconds from a prefiller's response until a decoder has the request.
    """

    prefill: int
    decode: int
    prefill_router: str | Router = "round-robin"
    decode_router: str | Router = "round-robin"
    link: str | None = None
    lease: int = LEASE_S
    handover: float = 0.0

    def check(self, trace: Trace) -> None:
        """Reject impossible pools, and traces whose requests have several samples.

        Raises:
            PagesimError: a number is out of bounds, or the trace has such requests.
        """
        for name, count in (("prefill", self.prefill), ("decode", self.decode)):
            if not 1 <= count <= MOST_REPLICAS:
                raise PagesimError(f"{name} is {count}; it must be from 1 to {MOST_REPLICAS}")
        for name, seconds in (("lease", self.lease), ("handover", self.handover)):
            if not 0 <= seconds <= MOST_S:
                raise PagesimError(f"{name} is {seconds:g}; it must be from 0 to {MOST_S} seconds")
        if (samples := int(trace.n.max(initial=1))) > 1:
            raise PagesimError(
                f"a request has {samples} samples; prefill apart from decode hands each prompt over for one: "
                "n must be 1"
            )


@dataclass(frozen=True, slots=True)
class ReplayedPools:
    """The outcome of a replay.

    Attributes:
        prefillers, decoders: the engines with their accounting.
        pulls: transfers of KV blocks from prefillers to decoders.
        log: what the requests' clients observed.
        link: link of each GPU.
    """

    prefillers: list[Server]
    decoders: list[Server]
    pulls: Pulls
    log: RequestLog
    link: Link


class TwiceContents(Contents):
    """Contents that are requested twice: first by a prefiller in request order, then by a decoder.

    Args:
        contents: contents that can be requested once.
    """

    def __init__(self, contents: Contents) -> None:
        self._contents_once = contents
        self._kept: dict[int, Content] = {}

    def of(self, row: int) -> Content:
        if row in self._kept:
            return self._kept.pop(row)
        content = self._kept[row] = self._contents_once.of(row)
        return content


def replay_pools(
    setting: PreparedSystem,
    options: PoolOptions,
    *,
    progress: ProgressCallback | None = None,
    account: MakeAccount | None = None,
) -> ReplayedPools:
    """Replay a trace whose prompts are prefilled in one pool and decoded in the other.

    Every request first goes to a prefiller, which computes its prompt and one token that is discarded. Then
    the request goes to a decoder.

    Args:
        setting: what all replicas have in common.
        options: configuration of the pools.
        progress: callback for a progress bar.
        account: factory for the consumers of each replica's records, see `MakeAccount`.

    Raises:
        PagesimError: the policy has no connector, or a router returns nonsense.
    """
    log, of_prefill, of_decode = setting.new_log(), setting.new_log(), setting.new_log()
    fleet = Fleet(setting, log)
    whole = fleet.whole
    if whole._contents is not None:
        whole._contents = TwiceContents(whole._contents)
    pulls = Pulls.of(len(setting.trace))
    over_so_far = 0

    def over(row: int, now: int, status: Status) -> None:
        nonlocal over_so_far
        log.status[row], log.finish[row] = int(status), now
        over_so_far += 1
        if progress is not None:
            progress(over_so_far)
        if fleet.tell is not None:
            fleet.tell(row, now)

    link = pull_link(options.link, gpu(setting.config.system.gpu))
    prefill = ReplicaPool(fleet, find_router(options.prefill_router), options.prefill)
    decode = ReplicaPool(fleet, find_router(options.decode_router), options.decode)
    handover = Handover(
        fleet,
        pulls,
        prefill,
        decode,
        Ports(link, setting.config.capacity.block_bytes),
        options.lease,
        to_ticks(options.handover),
        over,
    )
    servers: dict[PoolName, list[Server]] = {"prefill": [], "decode": []}

    def add(name: PoolName, pool: ReplicaPool, replica: PoolReplica, of_pool: RequestLog) -> None:
        of = replace(setting, pool=name)
        accounts = [] if account is None else [account(of, len(pool.replicas), replica.routed)]
        servers[name].append(pool.add(replica, of, of_pool, consume=accounts))

    for number in range(options.prefill):
        routed = AddedArrivals(_only_first_tokens(whole))
        prefiller = Prefiller(number, prefill.states, routed, fleet.prompts, leave=handover.left_prefiller)
        add("prefill", prefill, prefiller, of_prefill)
        assert isinstance(prefiller.connector, PrefillConnector)
        prefiller.connector.holds = options.lease > 0
    for number in range(options.decode):
        routed = AddedArrivals(whole)
        decoder = PoolReplica(number, decode.states, routed, fleet.prompts, leave=handover.left_decoder)
        add("decode", decode, decoder, of_decode)
        assert isinstance(decoder.connector, PullConnector)
        decoder.connector.pull = handover.pull
    fleet.run(prefill)
    pulls.prefiller, pulls.decoder = prefill.went_to, decode.went_to
    _add_times(log, of_prefill, of_decode)
    return ReplayedPools(servers["prefill"], servers["decode"], pulls, log, link)


def _only_first_tokens(whole: Arrivals) -> Arrivals:
    """Return the requests as prefillers see them, with one output token each."""
    first = copy.copy(whole)
    first.output = array("q", [1]) * len(whole)
    return first


def _add_times(log: RequestLog, of_prefill: RequestLog, of_decode: RequestLog) -> None:
    """Merge both pools' logs; the first token that a client receives is the decoder's."""
    log.first_scheduled = of_prefill.first_scheduled
    log.first_token = of_decode.first_token
    log.cached_tokens = of_prefill.cached_tokens
    for row in range(len(log.status)):
        log.recomputes[row] = of_prefill.recomputes[row] + of_decode.recomputes[row]

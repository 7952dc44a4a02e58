"""Pools: replaying prefill replicas and decode replicas on one clock."""

from __future__ import annotations

import copy
from array import array
from collections.abc import Callable
from dataclasses import dataclass, replace

from pagesim.accounting.request_log import RequestLog
from pagesim.errors import PagesimError
from pagesim.experiments.clusters.fleet import MOST_REPLICAS, Fleet, ReplicaPool
from pagesim.experiments.clusters.handover import Handover, Lease, Pulls
from pagesim.experiments.clusters.links import Ports
from pagesim.experiments.clusters.pool_replicas import PoolReplica, Prefiller
from pagesim.experiments.clusters.routers import Router
from pagesim.hardware import Link
from pagesim.scheduling.added import AddedArrivals
from pagesim.scheduling.arrivals import Arrivals
from pagesim.scheduling.content import Content, Contents
from pagesim.scheduling.disaggregated import PrefillConnector, PullConnector
from pagesim.scheduling.request import Status
from pagesim.scheduling.traits import Pool as PoolName
from pagesim.setup.prepare import PreparedSystem
from pagesim.setup.server import Consume, ProgressCallback, Server
from pagesim.sim.clock import to_ticks

MakeAccount = Callable[[PreparedSystem, int, AddedArrivals], Consume]
"""Makes the consumer of a replica's chunks, given its pool's system, its index there and its requests."""


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """Two pools of replicas and the connection between them.

    Attributes:
        prefill, decode: number of replicas in each pool.
        prefill_router, decode_router: routers, asked when a request arrives and when its prefill is done.
        link: link of each GPU.
        lease: lease on the blocks that prefillers hold.
        handover_s: seconds from a prefiller's response until a decoder has the request.
    """

    prefill: int
    decode: int
    prefill_router: Router
    decode_router: Router
    link: Link
    lease: Lease
    handover_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ReplayedPools:
    """The outcome of a replay.

    Attributes:
        prefillers, decoders: the engines with their accounting.
        pulls: transfers of KV blocks from prefillers to decoders.
        log: what the requests' clients observed.
    """

    prefillers: list[Server]
    decoders: list[Server]
    pulls: Pulls
    log: RequestLog


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

    prefill = ReplicaPool(fleet, options.prefill_router, options.prefill)
    decode = ReplicaPool(fleet, options.decode_router, options.decode)
    handover = Handover(
        fleet,
        pulls,
        prefill,
        decode,
        Ports(options.link, setting.config.capacity.block_bytes),
        options.lease,
        to_ticks(options.handover_s),
        over,
    )
    servers: dict[PoolName, list[Server]] = {"prefill": [], "decode": []}

    def add(name: PoolName, pool: ReplicaPool, replica: PoolReplica, of_pool: RequestLog) -> None:
        of = replace(setting, pool=name)
        accounts = [] if account is None else [account(of, len(pool.replicas), replica.routed)]
        pool.replicas.append(replica)
        servers[name].append(fleet.add(replica, of, of_pool, consume=accounts))

    for number in range(options.prefill):
        routed = AddedArrivals(_only_first_tokens(whole))
        prefiller = Prefiller(number, prefill.states, routed, fleet.prompts, leave=handover.left_prefiller)
        add("prefill", prefill, prefiller, of_prefill)
        assert isinstance(prefiller.connector, PrefillConnector)
        prefiller.connector.holds = options.lease.holds
    for number in range(options.decode):
        routed = AddedArrivals(whole)
        decoder = PoolReplica(number, decode.states, routed, fleet.prompts, leave=handover.left_decoder)
        add("decode", decode, decoder, of_decode)
        assert isinstance(decoder.connector, PullConnector)
        decoder.connector.pull = handover.pull
    fleet.run(prefill)
    pulls.prefiller, pulls.decoder = prefill.went_to, decode.went_to
    _add_times(log, of_prefill, of_decode)
    return ReplayedPools(servers["prefill"], servers["decode"], pulls, log)


def check_pools(trace_samples: int, options: PoolOptions) -> None:
    """Reject pools without or with too many replicas, and requests with several samples.

    Args:
        trace_samples: the largest number of samples of any request.
        options: configuration of the pools.

    Raises:
        PagesimError: a pool's size or the number of samples is invalid.
    """
    for name, count in (("prefill", options.prefill), ("decode", options.decode)):
        if not 1 <= count <= MOST_REPLICAS:
            raise PagesimError(f"{name} is {count}; it must be from 1 to {MOST_REPLICAS}")
    if trace_samples > 1:
        raise PagesimError(
            f"a request has {trace_samples} samples; prefill apart from decode hands each prompt over for "
            "one: n must be 1"
        )


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

"""Pools: replicas that prefill and replicas that decode, replayed on one clock."""

from __future__ import annotations

import copy
from array import array
from collections.abc import Callable
from dataclasses import dataclass, replace

import simpy

from pagesim.accounting.request_log import RequestLog
from pagesim.costs.specs import Link
from pagesim.errors import PagesimError
from pagesim.experiments.clusters.handover import Handover, Lease, Pulls
from pagesim.experiments.clusters.links import Ports
from pagesim.experiments.clusters.pool_replicas import Decoder, PoolReplica, Prefiller
from pagesim.experiments.clusters.replay import chosen
from pagesim.experiments.clusters.replicas import Replicas
from pagesim.experiments.clusters.routers import Router
from pagesim.scheduling.added import AddedArrivals
from pagesim.scheduling.arrivals import Arrivals
from pagesim.scheduling.content import Content, Contents
from pagesim.scheduling.request import Status
from pagesim.scheduling.traits import Pool
from pagesim.setup.prepare import PreparedSystem
from pagesim.setup.server import Consume, ProgressCallback, Server
from pagesim.sim.clock import to_ticks
from pagesim.sim.sending import ClosedLoop, send_at

MakeAccount = Callable[[PreparedSystem, int, AddedArrivals], Consume]
"""Makes what takes in a replica's chunks: from its pool's system, its number in the pool, its requests."""

MOST_REPLICAS = 4096


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """Two pools of replicas and what is between them.

    Attributes:
        prefill, decode: replicas of each.
        prefill_router, decode_router: choose among them, when a request arrives and when its prompt is there.
        link: of each GPU.
        lease: of blocks that prefillers hold.
        handover_s: seconds from a prefiller's answer until a decoder has the request.
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
    """What came of a replay.

    Attributes:
        prefillers, decoders: the engines with their accounts.
        pulls: copies of KV from prefillers to decoders.
        log: what became of requests for their clients.
    """

    prefillers: list[Server]
    decoders: list[Server]
    pulls: Pulls
    log: RequestLog


class TwiceContents(Contents):
    """Contents that are asked for twice: by a prefiller in the order of the requests, then by a decoder.

    Args:
        contents: that are asked for once.
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
    """Replay a trace whose prompts are computed in one pool and continued in the other.

    Every request goes to a prefiller, which computes its prompt and one token; that token is thrown away.
    Then the request goes to a decoder.

    Args:
        setting: what all replicas have in common.
        options: of the pools.
        progress: for a progress bar.
        account: returns what each replica's records are handed to, see `MakeAccount`.

    Raises:
        PagesimError: the policy has no connector, or a router answers nonsense.
    """
    whole, clients = setting.requests(), setting.clients()
    if whole._contents is not None:
        whole._contents = TwiceContents(whole._contents)
    environment = simpy.Environment()
    loop = None if clients is None else ClosedLoop(environment, clients)
    trace = setting.trace
    log, of_prefill, of_decode = setting.new_log(), setting.new_log(), setting.new_log()
    if clients is not None:
        log.sent, log.due = clients.sent, clients.due
    pulls = Pulls.of(len(trace))
    leaving = {row: when for when, row in setting.aborts()}
    over_so_far = 0

    def leaves(row: int) -> int | None:
        return leaving.get(row) if clients is None else clients.abort_time(row)

    def over(row: int, now: int, status: Status) -> None:
        nonlocal over_so_far
        log.status[row], log.finish[row] = int(status), now
        over_so_far += 1
        if progress is not None:
            progress(over_so_far)
        if loop is not None:
            loop.request_ended(row, now)

    def to_decoder(row: int, now: int) -> None:
        number = chosen(options.decode_router, trace, row, decode_states, now)
        pulls.decoder[row] = number
        decoders[number].submit(whole.index_of(row), row, now, leaves(row))

    handover = Handover(
        environment,
        pulls,
        Ports(options.link, setting.config.capacity.block_bytes),
        options.lease,
        to_ticks(options.handover_s),
        to_decoder,
        leaves,
        over,
    )
    prefillers: list[Prefiller] = []
    decoders: list[Decoder] = []
    servers: dict[Pool, list[Server]] = {"prefill": [], "decode": []}
    prefill_states, decode_states = Replicas(options.prefill), Replicas(options.decode)
    prompts = trace.prompt_tokens.tolist()

    def add(pool: Pool, replica: PoolReplica, of_pool: RequestLog) -> None:
        of = replace(setting, pool=pool)
        accounts = [] if account is None else [account(of, len(servers[pool]), replica.routed)]
        server = Server(of, of_pool, replica.routed, observers=[replica], consume=accounts)
        servers[pool].append(server)
        replica.start(environment, server.engine)

    for number in range(options.prefill):
        routed = AddedArrivals(_only_first_tokens(whole))
        prefiller = Prefiller(number, prefill_states, routed, prompts, leave=handover.left_prefiller)
        prefillers.append(prefiller)
        add("prefill", prefiller, of_prefill)
        prefiller.connector.holds = options.lease.holds
    for number in range(options.decode):
        decoder = Decoder(number, decode_states, AddedArrivals(whole), prompts, leave=handover.left_decoder)
        decoders.append(decoder)
        add("decode", decoder, of_decode)
        decoder.connector.pull = handover.pull
    handover.prefillers, handover.decoders = prefillers, decoders

    def route(index: int, now: int) -> None:
        row = whole.row[index]
        pulls.prefiller[row] = number = chosen(options.prefill_router, trace, row, prefill_states, now)
        prefillers[number].submit(index, row, now, leaves(row))

    if loop is None:
        send_at(environment, whole.ticks, route)
    else:
        loop.start(route)
    environment.run()
    for replica in (*prefillers, *decoders):
        replica.end()
    _add_times(log, of_prefill, of_decode)
    return ReplayedPools(servers["prefill"], servers["decode"], pulls, log)


def check_pools(trace_samples: int, options: PoolOptions) -> None:
    """Refuse pools of no or too many replicas, and requests of several samples.

    Args:
        trace_samples: of the request that has most.
        options: of the pools.

    Raises:
        PagesimError: the sentence says which.
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
    """Return the requests as prefillers get them: one output token each."""
    first = copy.copy(whole)
    first.output = array("q", [1]) * len(whole)
    return first


def _add_times(log: RequestLog, of_prefill: RequestLog, of_decode: RequestLog) -> None:
    """Add to the log what both pools noted: the first token that a client gets is the decoder's."""
    log.first_scheduled = of_prefill.first_scheduled
    log.first_token = of_decode.first_token
    log.cached_tokens = of_prefill.cached_tokens
    for row in range(len(log.status)):
        log.recomputes[row] = of_prefill.recomputes[row] + of_decode.recomputes[row]

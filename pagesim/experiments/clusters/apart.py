"""Disaggregated prefill and decode: replaying a trace on two pools of replicas."""

from __future__ import annotations

import time
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pagesim.accounting.ledger import HELD_WITHOUT_RUNNING
from pagesim.accounting.metrics import describe
from pagesim.api import as_trace
from pagesim.experiments.clusters.cluster import (
    ClusterResult,
    imbalances,
    name_of,
    replica_table,
    together,
)
from pagesim.experiments.clusters.handover import Pulls
from pagesim.experiments.clusters.pool_steps import PoolSteps, tables
from pagesim.experiments.clusters.pools import PoolOptions, ReplayedPools, replay_pools
from pagesim.experiments.clusters.routers import Router
from pagesim.setup.prepare import PreparedSystem, prepare
from pagesim.setup.scenario import LEASE_S
from pagesim.setup.server import ProgressCallback
from pagesim.setup.system import System, checked
from pagesim.sim.clock import TICKS_PER_SECOND, to_seconds
from pagesim.workloads.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

NOT_CHECKED = (
    "prefill apart from decode: rules of vLLM 0.33.0's pull connector (NIXL), read in its sources, not "
    "checked by logs"
)


def simulate_pools(
    trace: Trace | pd.DataFrame | str | PathLike[str],
    policy: str = "vllm-v1",
    *,
    prefill: int,
    decode: int,
    prefill_router: str | Router = "round-robin",
    decode_router: str | Router = "round-robin",
    link: str | None = None,
    lease: int = LEASE_S,
    handover: float = 0.0,
    **options: Any,
) -> ClusterResult:
    """Replay a trace on separate replicas for prefill and decode.

    Args:
        trace: as for `simulate`.
        policy: a name of `POLICIES` with a connector: vllm-v1.
        prefill: number of prefill replicas, from 1 to 4096.
        decode: number of decode replicas, from 1 to 4096.
        prefill_router: router for prefill replicas, as in `simulate_cluster`.
        decode_router: router for decode replicas; asked when a request's prefill has finished.
        link: link from each GPU to those of the other pool, ``RATE[:LATENCY]`` or ``infinite``. The default
            is the datasheet's link to another GPU in the same server.
        lease: seconds for which a prefiller holds blocks that no decoder asks for; 0 to hold none.
        handover: seconds from a prefiller's response until a decoder has the request.
        **options: fields of `System` for each replica.

    Raises:
        PagesimError: an option, the trace or their combination is invalid; the message says what to do.
    """
    system = checked(System, {"policy": policy, **options})
    return run_pools(
        system,
        as_trace(trace),
        prefill=prefill,
        decode=decode,
        prefill_router=prefill_router,
        decode_router=decode_router,
        link=link,
        lease=lease,
        handover=handover,
    )


def run_pools(
    system: System,
    trace: Trace,
    *,
    steps: bool = False,
    progress: ProgressCallback | None = None,
    **pools: Any,
) -> ClusterResult:
    """Replay a trace on two pools of replicas of the same system.

    Args:
        system: configuration of each replica.
        trace: requests.
        steps: whether the result includes the replicas' steps.
        progress: callback for a progress bar.
        **pools: fields of `PoolOptions`.

    Raises:
        PagesimError: an option, the trace or their combination is invalid, or a router returns nonsense.
    """
    started = time.perf_counter()
    options = PoolOptions(**pools)
    options.check(trace)
    setting = prepare(system, trace)
    accounts: list[PoolSteps] = []

    def account(of: PreparedSystem, number: int, routed: Any) -> Any:
        accounts.append(PoolSteps(of, number, routed))
        return accounts[-1].add

    replayed = replay_pools(setting, options, progress=progress, account=account if steps else None)
    of_requests, columns = setting.summary(replayed.log, np.array(replayed.pulls.prefiller, np.int64))
    columns |= _pull_columns(replayed.pulls)
    both = {
        "prefill": (replayed.prefillers, replayed.pulls.prefiller, options.prefill_router),
        "decode": (replayed.decoders, replayed.pulls.decoder, options.decode_router),
    }
    servers = [*replayed.prefillers, *replayed.decoders]
    of_pool = {
        name: replica_table(of, columns, np.array(went_to, np.int64))
        for name, (of, went_to, _) in both.items()
    }
    summary: dict[str, Any] = {
        "policy": system.policy,
        "cluster": {
            "replicas": len(servers),
            **{
                name: {
                    "replicas": len(of),
                    "router": name_of(router),
                    "imbalance": imbalances(of_pool[name]),
                }
                for name, (of, _, router) in both.items()
            },
            "lease_s": options.lease,
            "handover_s": options.handover,
        },
        **together(setting, servers, of_requests, started),
        "pulls": _pulls(setting, replayed),
    }
    return ClusterResult(
        system,
        summary,
        columns,
        _joined(of_pool),
        (
            *setting.notes(),
            NOT_CHECKED,
            replayed.link.note,
            *(note for server in servers for note in server.leak_notes()),
        ),
        tables(accounts) if steps else None,
    )


def _pull_columns(pulls: Pulls) -> dict[str, npt.NDArray[Any]]:
    """Return the extra columns of the requests table, ``[N]`` each; NaN for what did not happen."""

    def seconds(ticks: Any) -> npt.NDArray[np.float64]:
        column = np.asarray(ticks, np.int64)
        return np.where(column < 0, np.nan, to_seconds(column))

    return {
        "prefill_replica": np.asarray(pulls.prefiller, np.int64),
        "decode_replica": np.asarray(pulls.decoder, np.int64),
        "prefilled_s": seconds(pulls.prefilled),
        "pull_begun_s": seconds(pulls.begun),
        "pull_over_s": seconds(pulls.over),
        "pulled_blocks": np.maximum(np.asarray(pulls.blocks, np.int64), 0),
    }


def _pulls(setting: PreparedSystem, replayed: ReplayedPools) -> dict[str, Any]:
    """Return the part of a summary that covers the pulls."""
    pulls, link, sized = replayed.pulls, replayed.link, setting.config.capacity
    begun, over, prefilled = (
        np.asarray(each, np.int64) for each in (pulls.begun, pulls.over, pulls.prefilled)
    )
    there = begun >= 0
    blocks = int(np.maximum(np.asarray(pulls.blocks, np.int64), 0).sum())
    outcomes = pulls.outcomes
    return {
        **{name: outcomes[name] for name in ("pulled", "declined", "lease_ended", "pulled_late")},
        "blocks": blocks,
        "bytes": blocks * sized.block_bytes * sized.tp,
        "link_bytes_per_s": None if np.isinf(link.bytes_per_s) else link.bytes_per_s,
        "link_latency_s": link.latency_s,
        "waited_s": describe((begun - prefilled)[there] / TICKS_PER_SECOND),
        "took_s": describe((over - begun)[there] / TICKS_PER_SECOND),
    }


def _joined(of_pool: dict[str, dict[str, npt.NDArray[Any]]]) -> dict[str, npt.NDArray[Any]]:
    """Return both pools' replicas tables as one; an entry that a pool lacks is 0 there."""
    sizes = {name: len(table["replica"]) for name, table in of_pool.items()}
    names = list(dict.fromkeys(name for table in of_pool.values() for name in table))
    held = [name for entry in HELD_WITHOUT_RUNNING if (name := f"{entry}_percent") in names]
    others = [name for name in names if name not in held]
    place = others.index("external_percent")
    joined: dict[str, npt.NDArray[Any]] = {
        "pool": np.repeat(np.array(list(sizes), dtype=object), list(sizes.values()))
    }
    for name in (*others[:place], *held, *others[place:]):
        joined[name] = np.concatenate(
            [table.get(name, np.zeros(sizes[pool])) for pool, table in of_pool.items()]
        )
    return joined

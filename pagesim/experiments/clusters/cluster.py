"""A cluster: several engines of the same system on one clock, with a router in front of them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pagesim.accounting.metrics import TokenGaps, latencies, throughput
from pagesim.api import as_trace, peak_rss_mb
from pagesim.errors import PagesimError
from pagesim.experiments.clusters.attention_ranks import AttentionDataParallel, check_round_robin
from pagesim.experiments.clusters.data_parallel import DataParallel, check_router
from pagesim.experiments.clusters.fleet import MOST_REPLICAS, Deployment, independent_replicas
from pagesim.experiments.clusters.routers import Router, find_router
from pagesim.results.result import Stored
from pagesim.scheduling.drafts import Speculation
from pagesim.scheduling.failure_modes import FailureMode
from pagesim.setup.data_parallel import engines_of
from pagesim.setup.offload import total_traffic
from pagesim.setup.prepare import PreparedSystem, prepare
from pagesim.setup.server import ProgressCallback, Server
from pagesim.setup.system import System, checked
from pagesim.workloads.trace import Trace

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class ClusterResult(Stored):
    """The result of a cluster's run, whose summary covers all replicas together.

    ``requests`` has one more column, ``replica``: where each request was routed (-1 if it was rejected).
    ``summary["cluster"]`` holds the number of replicas and how unevenly they were loaded.

    Attributes:
        scenario, summary, request_columns: see `Stored`.
        replica_columns: columns of ``replicas``, ``[R]`` each.
        notes: observations and assumptions made during the run.
        steps: what each replica did, for disaggregated prefill and decode only; see `PoolSteps`.
    """

    _kind = "cluster"

    replica_columns: Mapping[str, npt.NDArray[Any]]
    notes: tuple[str, ...] = ()
    steps: pd.DataFrame | None = None

    @cached_property
    def replicas(self) -> pd.DataFrame:
        """A table with one row per replica."""
        import pandas as pd

        return pd.DataFrame(self.replica_columns)

    def write(self, folder: Path) -> None:
        super().write(folder)
        self.replicas.to_parquet(folder / "replicas.parquet", index=False)
        if self.steps is not None:
            self.steps.to_parquet(folder / "steps.parquet", index=False)


def simulate_cluster(
    trace: Trace | pd.DataFrame | str | PathLike[str],
    policy: str = "vllm-v1",
    *,
    replicas: int | None = None,
    router: str | Router | None = None,
    **options: Any,
) -> ClusterResult:
    """Replay a trace on several replicas of a system behind a router.

    With ``data_parallel_size`` the replicas are the ranks of one deployment, behind vLLM's own load balancer.

    Args:
        trace: as for `simulate`.
        policy: a name of `POLICIES`.
        replicas: number of replicas, from 1 to 4096; omit it with ``data_parallel_size``.
        router: name in ``ROUTERS`` or of an installed package's entry point, or a `Router`. The default is
            round-robin. With ``data_parallel_size`` a router needs ``data_parallel_lb="external"``.
        **options: fields of `System` for each replica.

    Raises:
        PagesimError: an option, the trace or their combination is invalid; the message says what to do.
    """
    system = checked(System, {"policy": policy, **options})
    return run_cluster(system, as_trace(trace), replicas=replicas, router=router)


def run_cluster(
    system: System,
    trace: Trace,
    *,
    replicas: int | None = None,
    router: str | Router | None = None,
    progress: ProgressCallback | None = None,
) -> ClusterResult:
    """Replay a trace on several replicas of a system.

    Args:
        system: configuration of each replica.
        trace: requests, which arrive at the router.
        replicas: see `simulate_cluster`.
        router: see `simulate_cluster`.
        progress: callback for a progress bar.

    Raises:
        PagesimError: an option, the trace or their combination is invalid, or a router returns nonsense.
    """
    started = time.perf_counter()
    option, ranks = engines_of(system)
    if ranks > 1 and replicas is not None:
        raise PagesimError(
            f"replicas is {replicas}, and {option} {ranks}; the replicas of a deployment are its "
            "ranks: leave one of them out"
        )
    replicas = ranks if ranks > 1 else replicas
    if replicas is None or not 1 <= replicas <= MOST_REPLICAS:
        raise PagesimError(f"replicas is {replicas}; it must be from 1 to {MOST_REPLICAS}")
    setting = prepare(system, trace)
    log = setting.new_log()
    chosen = find_router(router or "round-robin")
    deployment: Deployment
    balanced = ""
    if option == "data_parallel_size" and ranks > 1:
        balanced = check_router(setting, router)
        deployment = DataParallel(setting, log, chosen, progress=progress)
    else:
        if ranks > 1:
            balanced = check_round_robin(setting, router)
        if ranks > 1 and option == "attn_dp_size":
            deployment = AttentionDataParallel(setting, log, progress=progress)
        else:
            deployment = independent_replicas(setting, log, chosen, replicas, progress)
    deployment.replay()
    servers, replica_of = deployment.servers, deployment.went_to
    of_requests, columns = setting.summary(log, replica_of)
    columns = {**columns, "replica": replica_of}
    table = replica_table(servers, columns, replica_of)
    summary: dict[str, Any] = {
        "policy": system.policy,
        "cluster": {
            "replicas": replicas,
            "router": balanced or name_of(router or "round-robin"),
            "imbalance": imbalances(table),
            **deployment.summary(),
        },
        **together(setting, servers, of_requests, started),
    }
    notes = (*setting.notes(), *(note for server in servers for note in server.leak_notes()))
    return ClusterResult(system, summary, columns, table, notes)


def name_of(router: str | Router) -> str:
    """Return a router's name for a summary."""
    return router if isinstance(router, str) else type(router).__name__


def together(
    setting: PreparedSystem, servers: Sequence[Server], of_requests: dict[str, Any], started: float
) -> dict[str, Any]:
    """Return the parts of a summary that cover all replicas together.

    Args:
        setting: what the replicas have in common.
        servers: the replicas.
        of_requests: the summary's part about requests, see `PreparedSystem.summary`.
        started: start of the run, from ``time.perf_counter``.
    """
    gaps = TokenGaps()
    for server in servers:
        gaps.include(server.gaps)
    tiers = total_traffic([server.traffic() for server in servers])
    drafts = [each for server in servers if (each := server.scheduler.speculation) is not None]
    return {
        "requests": of_requests.pop("requests"),
        "failure_modes": {
            failure_mode.key: sum(server.engine.failure_modes[failure_mode] for server in servers)
            for failure_mode in FailureMode
        },
        **of_requests,
        "itl": gaps.summary(),
        "batch": {"mean": _mean([server.means.mean_batch for server in servers])},
        "iterations": sum(server.recorder.iterations for server in servers),
        "preemptions": {
            "recompute": sum(server.recorder.recomputed_total for server in servers),
            "swap": sum(server.recorder.swapped_total for server in servers),
        },
        **({"speculation": Speculation.total(drafts).summary()} if drafts else {}),
        **({"tiers": tiers} if tiers else {}),
        "aborted_tokens": sum(server.engine.aborted_tokens for server in servers),
        "extrapolated": dict(setting.config.cost.beyond),
        "sim": {
            "wall_s": time.perf_counter() - started,
            "peak_rss_mb": peak_rss_mb(),
            "rows": sum(server.recorder.rows for server in servers),
        },
    }


def replica_table(
    servers: Sequence[Server], columns: Mapping[str, npt.NDArray[Any]], replica_of: npt.NDArray[np.int64]
) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of the replicas table, ``[R]`` each.

    Args:
        servers: the replicas, ``[R]``.
        columns: columns of the requests table, ``[N]`` each.
        replica_of: replica of each request, ``[N]``; -1 for none.
    """
    rows = []
    for number, server in enumerate(servers):
        mine = replica_of == number
        own = {name: column[mine] for name, column in columns.items()}
        finished = own["status"] == "finished"
        latency = latencies(own)
        of_engine = server.summary()
        strict = of_engine["memory"]["strict"]["per_second"]
        rows.append(
            {
                "replica": number,
                "requests": int(mine.sum()),
                "finished": int(finished.sum()),
                "output_tokens": int((own["output_tokens"] * own["n"])[finished].sum()),
                "busy_share": server.means.busy_share,
                "mean_batch": of_engine["batch"]["mean"],
                "iterations": of_engine["iterations"],
                "recomputes": of_engine["preemptions"]["recompute"],
                "swaps": of_engine["preemptions"]["swap"],
                "requests_per_s": throughput(own)["requests_per_s"],
                "ttft_p50_s": latency["ttft"]["p50"],
                "ttft_p99_s": latency["ttft"]["p99"],
                "normalized_latency_mean_s": latency["normalized_latency"]["mean"],
                **{f"{entry}_percent": share for entry, share in strict.items()},
            }
        )
    return {name: np.array([np.nan if row[name] is None else row[name] for row in rows]) for name in rows[0]}


def imbalances(table: Mapping[str, npt.NDArray[Any]]) -> dict[str, float | None]:
    """Return the maximum over the mean across replicas, for the quantities a router should even out."""
    return {name: _imbalance(table[name]) for name in ("requests", "output_tokens", "busy_share")}


def _imbalance(column: npt.NDArray[Any]) -> float | None:
    """Return the maximum over the mean; 1 if all replicas are equal, None if the mean is zero or unknown."""
    mean = float(np.nanmean(column)) if np.isfinite(column).any() else 0.0
    return float(np.nanmax(column)) / mean if mean else None


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None

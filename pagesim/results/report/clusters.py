"""Clusters on a page: the load of each replica over time, from the stored run of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pagesim.errors import PagesimError
from pagesim.experiments.clusters import ClusterResult
from pagesim.experiments.clusters.pool_shares import pool_shares
from pagesim.results.report.assemble import options_of, write_page
from pagesim.results.report.pack import pack, pack_times
from pagesim.results.report.run_tables import distributions
from pagesim.results.result import read_result
from pagesim.results.style import PARTS, drawn
from pagesim.setup.scenario import Cluster
from pagesim.setup.scenario_files import read_scenario, read_toml
from pagesim.setup.system import System

Column = npt.NDArray[np.float64]

MOST_CLUSTERS = 6
"""Maximum number of clusters compared on one page."""

_TABLES = ("requests", "replicas", "steps")

POINTS, MOST_CELLS = 400, 100_000
"""Maximum number of instants of a chart over time, and of cells in a map of replicas over time."""

SECTIONS = ("headline", "replicas", "load", "replica-memory", "latency", "scenario")

SCRIPTS = ("data.js", "parts.js", "headline.js", "charts.js", "theme.js", "cluster.js")


def read_cluster(folder: Path) -> ClusterResult:
    """Read the stored run of a cluster.

    Raises:
        PagesimError: the folder holds no such run or an incomplete one.
    """
    summary, tables = read_result(folder, _TABLES, "cluster", "pagesim run --replicas")
    columns = {str(name): column.to_numpy() for name, column in tables["requests"].items()}
    replicas = {str(name): column.to_numpy() for name, column in tables["replicas"].items()}
    scenario = folder / "scenario.toml"
    kind = Cluster if "trace" in read_toml(scenario) else System
    return ClusterResult(read_scenario(kind, scenario), summary, columns, replicas, steps=tables.get("steps"))


def write_cluster_report(folders: Sequence[Path], out: Path) -> None:
    """Write a page that shows one or several clusters side by side.

    Args:
        folders: results of ``pagesim run --replicas``.
        out: HTML file, written completely or not at all.

    Raises:
        PagesimError: a folder holds no such result, there are too many, or the file cannot be written.
    """
    if len(folders) > MOST_CLUSTERS:
        raise PagesimError(f"{len(folders)} clusters are too many for one page; give at most {MOST_CLUSTERS}")
    results = [read_cluster(folder) for folder in folders]
    names = [folder.resolve().name for folder in folders]
    systems = [_cluster(name, result) for name, result in zip(names, results, strict=True)]
    entries = [name for name in PARTS if any(f"{name}_percent" in each.replica_columns for each in results)]
    data = {
        "end": max(_end(result) for result in results),
        "entries": drawn(PARTS, entries),
        "systems": systems,
    }
    title = "How evenly the replicas were loaded"
    write_page(data, out, SECTIONS, SCRIPTS, title=title, first="replicas")


def _cluster(name: str, result: ClusterResult) -> dict[str, Any]:
    replicas = result.replica_columns
    pools = replicas.get("pool")
    numbers = replicas["replica"].tolist()
    labels = (
        [f"{pool} {number}" for pool, number in zip(pools, numbers, strict=True)]
        if pools is not None
        else numbers
    )
    points = max(2, min(POINTS, MOST_CELLS // max(1, len(numbers))))
    clock = np.linspace(0.0, _end(result), points)
    outstanding = _outstanding(result, clock)
    kept = result.request_columns["status"] != "rejected"
    own = {name: column[kept] for name, column in result.request_columns.items()}
    waiting = _between(own["arrival_s"], own["first_scheduled_s"], own["finish_s"], clock)
    running = _between(own["first_scheduled_s"], own["finish_s"], own["finish_s"], clock)
    return {
        "name": name,
        "scenario": options_of(result.scenario, result.summary),
        "summary": {name: value for name, value in result.summary.items() if name != "sim"},
        "replicas": {
            "names": [str(label) for label in labels],
            "most": pack(outstanding.max(axis=1, initial=0)),
            **{key: pack(column) for key, column in replicas.items() if column.dtype.kind in "iuf"},
        },
        "over_time": {"clock": pack_times(clock), "num_waiting": pack(waiting), "num_running": pack(running)},
        "outstanding": pack(outstanding.ravel()),
        "pools": _pools(result, clock),
        "distributions": distributions(result),
    }


def _end(result: ClusterResult) -> float:
    """Return the time of the last arrival or finish, in seconds."""
    own = result.request_columns
    return max([0.0, *(float(np.nanmax(own[name], initial=0.0)) for name in ("arrival_s", "finish_s"))])


def _between(start: Column, end: Column, otherwise: Column, clock: Column) -> npt.NDArray[np.int64]:
    """Count the requests that are in some phase at each instant, ``[T]``.

    Args:
        start: start of each request's phase, ``[N]``, NaN for never.
        end: end of each request's phase, ``[N]``, NaN for never.
        otherwise: end to use for requests whose ``end`` is NaN, ``[N]``.
        clock: instants in seconds, ``[T]``.
    """
    begun = ~np.isnan(start)
    over = np.where(np.isnan(end), otherwise, end)[begun]
    over = np.where(np.isnan(over), inf, over)
    return np.searchsorted(np.sort(start[begun]), clock, "right") - np.searchsorted(
        np.sort(over), clock, "right"
    )


def _outstanding(result: ClusterResult, clock: Column) -> npt.NDArray[np.int64]:
    """Count the unfinished requests of each replica at each instant, ``[R, T]``."""
    own, replicas = result.request_columns, result.replica_columns
    # With two pools, a request belongs to the first until its KV has been handed over.
    stays: dict[str, tuple[str, Column, Column]] = {"": ("replica", own["arrival_s"], own["finish_s"])}
    if "pool" in replicas:
        handed = own["prefilled_s"]
        stays = {
            "prefill": (
                "prefill_replica",
                own["arrival_s"],
                np.where(np.isnan(handed), own["finish_s"], handed),
            ),
            "decode": ("decode_replica", handed, own["finish_s"]),
        }
    pools = replicas.get("pool", np.full(len(replicas["replica"]), ""))
    rows = []
    for pool, number in zip(pools.tolist(), replicas["replica"].tolist(), strict=True):
        column, start, end = stays[pool]
        mine = own[column] == number
        rows.append(_between(start[mine], end[mine], own["finish_s"][mine], clock))
    return np.array(rows, np.int64).reshape(len(rows), len(clock))


def _pools(result: ClusterResult, clock: Column) -> dict[str, Any] | None:
    """Return each pool's ledger over time in percent of the cache; None if there are no pools."""
    if result.steps is None or result.steps.empty:
        return None
    return {
        pool: {
            "clock": pack_times(clock),
            **{name: pack(share) for name, share in shares.items() if share.any()},
        }
        for pool in ("prefill", "decode")
        for shares in [pool_shares(result, pool, clock)]
    }

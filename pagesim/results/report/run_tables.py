"""Tables: a result's tables, reduced to what a page can show."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from pagesim.accounting.metrics import STRICT_ENTRIES, latency_values
from pagesim.kvcache.tiers import ENTRIES
from pagesim.results.report.pack import pack, pack_names, pack_times
from pagesim.results.report.snapshots import Snapshots
from pagesim.results.result import Result, Stored
from pagesim.sim.clock import TICKS_PER_SECOND

MOST_POINTS = 500
"""Maximum number of points of a chart over time."""

MOST_REQUESTS = 20_000
"""Maximum number of requests in the waterfall."""

QUANTILES = 200

LATENCIES = ("normalized_latency", "ttft", "tpot", "queueing")


def over_time(result: Result) -> dict[str, Any] | None:
    """Return the ledger, the queue and the batch at instants of the run; None if no steps were kept."""
    steps = result.steps
    if steps is None or steps.empty:
        return None
    clock = steps["clock"].to_numpy(np.float64)
    rows = _spread(clock)
    shown = steps.iloc[rows]
    entries = [name for name in STRICT_ENTRIES if name in steps]
    memory = result.summary["memory"]
    # Blocks of different sizes cannot be stacked.
    groups = memory.get("groups", {}) if "page_bytes" in memory else {}
    held = [shown[f"held_blocks_{number}"].to_numpy(np.int64) for number in range(len(groups))]
    return {
        "rows": len(steps),
        "iterations": result.summary["iterations"],
        "points": len(rows),
        "clock": pack(clock[rows]),
        **{
            name: pack(shown[name].to_numpy(np.int64))
            for name in (*entries, "num_running", "num_waiting", "num_swapped")
        },
        "groups": [{"name": name, "blocks": pack(blocks)} for name, blocks in zip(groups, held, strict=True)],
    }


def _spread(clock: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return the rows that a chart over time shows: all, or those in effect at evenly spaced instants."""
    if len(clock) <= MOST_POINTS:
        return np.arange(len(clock))
    instants = np.linspace(clock[0], clock[-1], MOST_POINTS)
    return np.unique(np.searchsorted(clock, instants, "right") - 1)


def tiers(result: Result) -> list[dict[str, Any]]:
    """Return each tier's capacity, mean shares, and chunks by entry at instants of the run.

    Percentages refer to ``scale``, which is the capacity, or the peak content of an unlimited tier.
    """
    table = result.tiers
    found: list[dict[str, Any]] = []
    if table is None:
        return found
    for name, known in result.summary["memory"]["tiers"].items():
        own = table[table["tier"] == name]
        clock = own["clock"].to_numpy(np.float64)
        rows = _spread(clock)
        used = own[["pending", "pinned", "duplicate", "kept"]].to_numpy(np.int64).sum(axis=1)
        capacity = known["capacity"]
        found.append(
            {
                "name": name,
                "capacity": capacity,
                "scale": int(used.max(initial=1)) if capacity is None else capacity,
                "means": known["per_second"],
                "clock": pack(clock[rows]),
                **{entry: pack(own[entry].to_numpy(np.float64)[rows]) for entry in ENTRIES},
            }
        )
    return found


def distributions(result: Stored) -> dict[str, Any]:
    """Return quantiles of each latency over the samples of finished requests, and the number of samples.

    ``docs/reference/metrics.md`` defines the samples; None if there are none.
    """
    shares = np.linspace(0, 1, QUANTILES + 1)
    return {
        name: {"samples": len(found), "quantiles": pack(np.quantile(found, shares))} if len(found) else None
        for name, found in latency_values(result.request_columns)
        if name in LATENCIES
    }


def waterfall(result: Result, snapshots: Snapshots | None) -> dict[str, Any]:
    """Return the times of requests and the periods during which they were preempted."""
    columns = result.request_columns
    total = len(columns["arrival_s"])
    rows = np.arange(total)
    if total > MOST_REQUESTS:
        rows = np.unique(np.linspace(0, total - 1, MOST_REQUESTS).astype(np.int64))
    statuses = sorted(set(columns["status"].tolist()))
    absences = [] if snapshots is None else snapshots.absences
    place = np.full(total, -1)
    place[rows] = np.arange(len(rows))
    away = [a for a in absences if place[a.row] >= 0]
    return {
        "total": total,
        "names": pack_names(columns["request_id"][rows].tolist()),
        "statuses": statuses,
        "status": pack([statuses.index(status) for status in columns["status"][rows].tolist()]),
        **{
            name: pack_times(columns[name][rows])
            for name in ("arrival_s", "first_scheduled_s", "first_token_s", "finish_s")
        },
        **{
            name: pack(columns[name][rows].astype(np.int64))
            for name in ("prompt_tokens", "output_tokens", "recomputes", "swaps")
        },
        "absences": None
        if snapshots is None
        else {
            "request": pack([place[a.row] for a in away]),
            "swapped": pack([int(a.swapped) for a in away]),
            "tokens": pack([a.tokens for a in away]),
            "blocks": pack([a.blocks for a in away]),
            "start": pack_times([a.start / TICKS_PER_SECOND for a in away]),
            "end": pack_times([a.end / TICKS_PER_SECOND if a.end >= 0 else inf for a in away]),
        },
    }


def preemptions(result: Result, snapshots: Snapshots | None) -> dict[str, Any]:
    """Return the number and the costs of preemptions, by kind; costs are None or absent if unknown."""
    summary = result.summary
    found: dict[str, Any] = {}
    for kind, swapped in (("recompute", False), ("swap", True)):
        cost: dict[str, Any] = {"count": summary["preemptions"][kind]}
        if snapshots is not None:
            absences = [a for a in snapshots.absences if a.swapped == swapped]
            gone = [(a.end - a.start) / TICKS_PER_SECOND for a in absences if a.end >= 0]
            cost |= {
                "tokens": sum(a.tokens for a in absences),
                "blocks": sum(a.blocks for a in absences),
                "away_s": sum(gone),
                "mean_s": sum(gone) / len(gone) if gone else None,
                "longest_s": max(gone, default=None),
                "never_back": sum(a.end < 0 for a in absences),
            }
        found[kind] = cost
    table = result.preemptions
    if table is not None:
        priced = table.groupby("choice")[["swap_s", "recompute_s"]].agg(["size", "sum"])
        found["prices"] = [
            {
                "choice": str(choice),
                "victims": int(row[("swap_s", "size")]),
                "swap_s": float(row[("swap_s", "sum")]),
                "recompute_s": float(row[("recompute_s", "sum")]),
            }
            for choice, row in priced.iterrows()
        ]
    return found

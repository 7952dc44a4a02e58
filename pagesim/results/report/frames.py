"""Frames: snapshots in the form that a page plays, each stored as differences from the previous one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pagesim.accounting.metrics import STRICT_ENTRIES
from pagesim.kvcache import HybridManager
from pagesim.results.report.cells import MOST_CELLS, Column
from pagesim.results.report.group_cells import described
from pagesim.results.report.pack import pack, pack_names
from pagesim.results.report.snapshots import Snapshots
from pagesim.results.result import Result
from pagesim.sim.clock import TICKS_PER_SECOND

EVENTS = ("num_preempted", "blocks_swapped_out", "blocks_swapped_in", "blocks_copied")
"""Columns of the steps table that the page shows as sums between two snapshots."""


def frames(snapshots: Snapshots, result: Result) -> dict[str, Any]:
    """Return snapshots for the page; ``frames.js`` documents the format.

    Args:
        snapshots: snapshots from a replay of the result.
        result: result that provides the names of requests and the steps.
    """
    taken = snapshots.taken
    memory = result.summary["memory"]
    stays = snapshots.stays
    rows, request = np.unique(stays[:, 0], return_inverse=True)
    clock = np.array([each.clock for each in taken]) / TICKS_PER_SECOND
    return {
        "blocks": memory["num_blocks"],
        "drawn": min(memory["num_blocks"], MOST_CELLS),
        "most_cells": MOST_CELLS,
        "block_size": memory["block_size"],
        "page": memory.get("page_bytes"),
        "groups": described(snapshots.memory.groups) if isinstance(snapshots.memory, HybridManager) else None,
        "entries": [name for name in STRICT_ENTRIES if name in memory["strict"]["per_iteration"]],
        "parks": list(snapshots.scheduler.parks),
        "cpu_blocks": memory["cpu_blocks"],
        "names": pack_names(result.request_columns["request_id"][rows].tolist()),
        "stays": {
            "request": pack(request),
            "sample": pack(stays[:, 1]),
            "final": pack(stays[:, 2]),
            "reserved": pack(stays[:, 3]),
            "group": pack(stays[:, 4]),
            "park": pack(stays[:, 5]),
        },
        "several": bool((stays[:, 1] > 0).any()),
        "shown": pack(snapshots.shown),
        "clock": pack(clock),
        "iteration": pack([each.iteration for each in taken]),
        "counts": pack(np.array([each.counts for each in taken]).ravel()),
        "external": pack([int(each.external) for each in taken]),
        "ledger": pack(np.array([each.ledger for each in taken]).ravel()),
        "present": {
            "sizes": pack([len(each.stays) for each in taken]),
            "stays": pack(np.concatenate([each.stays for each in taken])),
            "lengths": pack(np.concatenate([each.lengths for each in taken])),
            "needed": pack(np.concatenate([each.needed for each in taken])),
        },
        "cells": _changes([each.cells for each in taken]),
        "swapped": _changes([each.swapped for each in taken]),
        "events": _events(clock, result),
    }


def _changes(cells: list[Column]) -> dict[str, Any]:
    """Return the changed cells of each snapshot, with block numbers as differences."""
    _, owner, place, references = np.concatenate(cells, axis=1)
    return {
        "sizes": pack([each.shape[1] for each in cells]),
        "steps": pack(np.concatenate([np.diff(each[0], prepend=0) for each in cells])),
        "owner": pack(owner),
        "place": pack(place),
        "references": pack(references),
    }


def _events(clock: npt.NDArray[np.float64], result: Result) -> dict[str, Any] | None:
    """Return the sums of `EVENTS` between each snapshot and the previous one, ``[snapshots]`` each."""
    steps = result.steps
    if steps is None or steps.empty:
        return None
    # A snapshot includes its own iteration's events. Its clock equals a row's, rounded in the same way.
    upto = np.searchsorted(steps["clock"].to_numpy(np.float64), clock, "right")
    events = {}
    for name in EVENTS:
        total = np.concatenate([[0], np.cumsum(steps[name].to_numpy(np.int64))])[upto]
        events[name] = pack(np.diff(total, prepend=0))
    return events

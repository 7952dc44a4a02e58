"""Reel: a film in the form in which a page plays it, each picture as what differs from the one before."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pagesim.results.report.film import Film, Picture
from pagesim.results.report.pack import pack
from pagesim.results.report.picture import MOST_CELLS, Column
from pagesim.results.result import Result
from pagesim.sim.clock import TICKS_PER_SECOND

EVENTS = ("num_preempted", "blocks_swapped_out", "blocks_swapped_in", "blocks_copied")
"""Columns of the steps table whose sums between two pictures the page tells."""


def reel(film: Film, result: Result) -> dict[str, Any]:
    """Return a film for the page; ``map.js`` says what it reads.

    Args:
        film: of a replay of the result.
        result: names its requests and holds its steps.
    """
    pictures = film.pictures
    memory = result.summary["memory"]
    stays = film.stays
    rows, request = np.unique(stays[:, 0], return_inverse=True)
    clock = np.array([picture.clock for picture in pictures]) / TICKS_PER_SECOND
    return {
        "blocks": memory["num_blocks"],
        "drawn": min(memory["num_blocks"], MOST_CELLS),
        "most_cells": MOST_CELLS,
        "block_size": memory["block_size"],
        "cpu_blocks": memory["cpu_blocks"],
        "names": [str(name) for name in result.request_columns["request_id"][rows].tolist()],
        "stays": {
            "request": pack(request),
            "sample": pack(stays[:, 1]),
            "final": pack(stays[:, 2]),
            "reserved": pack(stays[:, 3]),
        },
        "several": bool((stays[:, 1] > 0).any()),
        "shown": pack(film.shown),
        "clock": pack(clock),
        "iteration": pack([picture.iteration for picture in pictures]),
        "counts": pack(np.array([picture.counts for picture in pictures]).ravel()),
        "external": pack([int(picture.external) for picture in pictures]),
        "ledger": pack(np.array([picture.ledger for picture in pictures]).ravel()),
        "present": {
            "sizes": pack([len(picture.stays) for picture in pictures]),
            "stays": pack(np.concatenate([picture.stays for picture in pictures])),
            "lengths": pack(np.concatenate([picture.lengths for picture in pictures])),
        },
        "cells": _changes([picture.cells for picture in pictures]),
        "swapped": _changes([picture.swapped for picture in pictures]),
        "events": _events(pictures, clock, result),
    }


def _changes(cells: list[Column]) -> dict[str, Any]:
    """Return, picture by picture, the cells that differ; blocks as steps from one to the next."""
    _, owner, place, references = np.concatenate(cells, axis=1)
    return {
        "sizes": pack([each.shape[1] for each in cells]),
        "steps": pack(np.concatenate([np.diff(each[0], prepend=0) for each in cells])),
        "owner": pack(owner),
        "place": pack(place),
        "references": pack(references),
    }


def _events(pictures: list[Picture], clock: npt.NDArray[np.float64], result: Result) -> dict[str, Any] | None:
    """Return how often things happened between each picture and the one before, ``[pictures]`` each."""
    steps = result.steps
    if steps is None or steps.empty:
        return None
    # A picture shows what its own iteration did. Its clock is that of a row, rounded in the same way.
    upto = np.searchsorted(steps["clock"].to_numpy(np.float64), clock, "right")
    events = {}
    for name in EVENTS:
        total = np.concatenate([[0], np.cumsum(steps[name].to_numpy(np.int64))])[upto]
        events[name] = pack(np.diff(total, prepend=0))
    return events

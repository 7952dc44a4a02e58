"""All-reduces: seconds of one, by how many elements it sums and whether a graph launches it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pagesim.costs.operators.tables import Chip, Floats, OperatorTable, version_of
from pagesim.costs.table import line

FAMILY = "all_reduce"
GRAPH, EAGER, NCCL = "graph", "eager", "nccl"

EAGER_S = 16e-6
"""Seconds that an all-reduce which no graph launches takes beside what the table has of it: found by
comparing sums of operators with whole runs, not in the tables."""

MUCH = 1.5
"""Where two releases' seconds differ by more than this in the mean, the nearer release counts."""


class Reduces(NamedTuple):
    """All-reduces among some GPUs of one node, of 16-bit elements.

    Attributes:
        table: of the engine's own all-reduces.
        graph, eager: seconds by size, launched by a graph and by the host, ``[S]``.
        nccl: NCCL's, for messages larger than any that was measured of the engine's own; or None.
        gpus: that take part.
        notes: what a user should know, a sentence each.
    """

    table: OperatorTable
    graph: Floats
    eager: Floats
    nccl: OperatorTable | None
    gpus: int
    notes: tuple[str, ...]

    def seconds(self, elements: Floats, *, graph: bool) -> Floats:
        """Return the seconds of one all-reduce of so many elements, ``[E]``."""
        sizes = self.table.axes[0]
        found = line(sizes, self.graph if graph else self.eager, elements)
        theirs = self.nccl.row(self.gpus) if self.nccl is not None else None
        if self.nccl is not None and theirs is not None and self.nccl.axes[0][-1] > sizes[-1]:
            found = np.where(elements > sizes[-1], line(self.nccl.axes[0], theirs, elements), found)
        return found if graph else found + EAGER_S


def reduces(chip: Chip, gpus: int) -> Reduces | None:
    """Return the all-reduces among some GPUs; None if none was timed.

    Args:
        chip: the GPU and its measurements.
        gpus: that take part.
    """
    tables = chip.tables
    timed = [table for table in tables.find(FAMILY) if table.name[1].endswith(GRAPH)]
    timed = [table for table in timed if table.row(gpus) is not None]
    if not timed:
        return None
    table, said = _chosen(timed, gpus, chip.release)
    eager = next(
        each for each in tables.find(FAMILY) if each.name[1].endswith(EAGER) and each.release == table.release
    )
    graph_s, eager_s = table.row(gpus), eager.row(gpus)
    if graph_s is None or eager_s is None:
        return None
    nccl = tables.find(FAMILY, NCCL)
    return Reduces(table, _least(graph_s), _least(eager_s), nccl[0] if nccl else None, gpus, said)


def _least(seconds: Floats) -> Floats:
    """Return the seconds of an all-reduce by size, none longer than that of a larger one.

    Where the engine goes over to another algorithm some sizes take longer than larger ones.
    """
    least: Floats = np.fmin.accumulate(seconds[::-1])[::-1]
    return least


def _chosen(timed: Sequence[OperatorTable], gpus: int, release: str) -> tuple[OperatorTable, tuple[str, ...]]:
    """Return the newest table, or the one of the nearest release where releases differ much."""
    newest = timed[0]
    wanted = version_of(release)
    if len(timed) == 1 or not wanted:
        return newest, ()
    ratios = {each.release: _ratio(each, newest, gpus) for each in timed[1:]}
    name, ratio = max(ratios.items(), key=lambda each: max(each[1], 1 / each[1]))
    if max(ratio, 1 / ratio) <= MUCH:
        return newest, ()
    near = min(timed, key=lambda each: _apart(version_of(each.release), wanted))
    factor = max(ratio, 1 / ratio)
    return near, (
        f"all-reduces among {gpus} GPUs differ by {factor:.1f} times between {newest.release} and {name}: "
        f"those of {near.release} are taken, the nearest to {release}",
    )


def _ratio(one: OperatorTable, other: OperatorTable, gpus: int) -> float:
    """Return the mean ratio of two tables' seconds at the sizes that both have."""
    sizes, at, beside = np.intersect1d(one.axes[0], other.axes[0], return_indices=True)
    ours, theirs = one.row(gpus), other.row(gpus)
    if not len(sizes) or ours is None or theirs is None:
        return 1.0
    return float(np.exp(np.nanmean(np.log(ours[at] / theirs[beside]))))


def _apart(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Return how far two versions are apart: a minor version counts as a hundred patches."""
    first, second = (
        10_000 * major + 100 * minor + patch
        for major, minor, patch, *_ in ((*each, 0, 0, 0) for each in (one, other))
    )
    return abs(first - second)

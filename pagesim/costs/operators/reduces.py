"""All-reduces: seconds by number of elements, launched by a CUDA graph or by the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pagesim.costs.operators.tables import Chip, Floats, OperatorTable, version_of
from pagesim.costs.table import line

FAMILY = "all_reduce"
GRAPH, EAGER, NCCL = "graph", "eager", "nccl"

EAGER_S = 16e-6
"""Additional seconds of an all-reduce launched without a graph, beyond its time in the table. It comes from
comparing sums of operators with whole runs, not from the tables."""

MUCH = 1.5
"""Mean factor between two releases' seconds above which the nearest release is used."""


class Reduces(NamedTuple):
    """All-reduces of 16-bit elements among some GPUs of one node.

    Attributes:
        table: table of the engine's own all-reduces.
        graph, eager: seconds by size, launched by a graph and by the host, ``[S]``.
        nccl: table of NCCL's all-reduces, for messages larger than those in ``table``; None if untimed.
        gpus: number of GPUs that take part.
        notes: what a user should know, one sentence each.
    """

    table: OperatorTable
    graph: Floats
    eager: Floats
    nccl: OperatorTable | None
    gpus: int
    notes: tuple[str, ...]

    def seconds(self, elements: Floats, *, graph: bool) -> Floats:
        """Return the seconds of one all-reduce for each number of elements, ``[E]``."""
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
        gpus: number of GPUs that take part.
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
    """Return the seconds by size, each lowered to the minimum of all larger sizes.

    Just before the engine switches to another algorithm, some sizes take longer than larger ones.
    """
    least: Floats = np.fmin.accumulate(seconds[::-1])[::-1]
    return least


def _chosen(timed: Sequence[OperatorTable], gpus: int, release: str) -> tuple[OperatorTable, tuple[str, ...]]:
    """Return the newest table, or that of the nearest release if releases differ much, with a note."""
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
    """Return the geometric mean ratio of two tables' seconds at their common sizes."""
    sizes, at, beside = np.intersect1d(one.axes[0], other.axes[0], return_indices=True)
    ours, theirs = one.row(gpus), other.row(gpus)
    if not len(sizes) or ours is None or theirs is None:
        return 1.0
    return float(np.exp(np.nanmean(np.log(ours[at] / theirs[beside]))))


def _apart(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Return the distance between two versions; a minor version counts as a hundred patches."""
    first, second = (
        10_000 * major + 100 * minor + patch
        for major, minor, patch, *_ in ((*each, 0, 0, 0) for each in (one, other))
    )
    return abs(first - second)

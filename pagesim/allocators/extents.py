"""Extents: runs of adjacent blocks."""

from __future__ import annotations

from collections.abc import Iterable

Extent = tuple[int, int]
"""A run of adjacent blocks: (first block, number of blocks)."""

Copy = tuple[int, int]
"""A copy of a block: (from, to)."""


def join_extents(blocks: Iterable[int]) -> list[Extent]:
    """Join consecutive block numbers into runs, keeping the given order."""
    runs: list[Extent] = []
    for block in blocks:
        if runs and block == sum(runs[-1]):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((block, 1))
    return runs

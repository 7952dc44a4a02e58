"""Extents: runs of neighbouring blocks."""

from __future__ import annotations

from collections.abc import Iterable

Extent = tuple[int, int]
"""A run of neighbouring blocks: (first block, number of blocks)."""

Copy = tuple[int, int]
"""A block to be copied: (from, to)."""


def join_extents(blocks: Iterable[int]) -> list[Extent]:
    """Return runs of neighbouring blocks, in the order given."""
    runs: list[Extent] = []
    for block in blocks:
        if runs and block == sum(runs[-1]):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((block, 1))
    return runs

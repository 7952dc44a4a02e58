"""Sums over what lasts: changes at its ends, summed up, so that nothing is looked at in every iteration."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.int64]


class Growth:
    """How many steps of growth had been taken at each of some consecutive iterations.

    Args:
        steps: ``[I]``, never falling.
    """

    __slots__ = ("_a_step_each", "steps")

    def __init__(self, steps: Column) -> None:
        self.steps = steps
        self._a_step_each = bool(len(steps) and (np.diff(steps) == 1).all())

    def reaching(self, steps: Column) -> Column:
        """Return the first iterations at which growth is at least so far; it is in the end."""
        found: Column = steps - self.steps[0] if self._a_step_each else np.searchsorted(self.steps, steps)
        return found


def each_of(counts: Column) -> tuple[Column, Column]:
    """Return for ``counts[i]`` events of each i the i, and which of its events each is, from 0."""
    which = np.repeat(np.arange(len(counts)), counts)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)


def sum_changes(size: int, *changes: tuple[Column, Column]) -> Column:
    """Return the running sum, ``[size]``, of amounts that change at given indices (some one past the end)."""
    sums = np.zeros(size + 1, np.int64)
    for where, amounts in changes:
        np.add.at(sums, where, amounts)
    return np.cumsum(sums[:size])

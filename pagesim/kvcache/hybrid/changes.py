"""Changes: what growth changed in a counted hybrid cache, noted by many steps at once."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pagesim.kvcache.hybrid.stores import WindowStore
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Changes:
    """See `KVCache.take_changes`.

    Steps in which sequences take and give back by the step, modulo the block size, are noted together, as
    what they do at each step of a block; others one by one.

    Args:
        size: tokens a block.
        groups: how many there are.
        windows: the stores of windows.
    """

    __slots__ = ("_groups", "_lost", "_numbers", "_rings", "_single", "_size", "_windows")

    def __init__(self, size: int, groups: int, windows: Sequence[WindowStore]) -> None:
        self._size = size
        self._groups = groups
        self._windows = windows
        self._forget()

    def note(self, step: int, cached: int, held: Sequence[int]) -> None:
        """Note what a step left: the cached blocks, and those that sequences have in each group."""
        self._single.fromlist([step, cached, *held])

    def note_alike(self, after: int, steps: int, cached: int, held: Sequence[int], takes: array[int]) -> None:
        """Note so many steps after one, before they change anything.

        Args:
            after: the step before the first of them.
            steps: how many.
            cached: blocks, before them.
            held: blocks that sequences have in each group, likewise.
            takes: how many sequences take blocks, ``[size]``; what windows give back is read from these.
        """
        self._numbers.fromlist([after, steps, cached, *held])
        rings = self._rings
        rings += takes
        for store in self._windows:
            rings += store.gives
            rings += store.passes

    def note_lost(self, step: int, blocks: int) -> None:
        """Note how many blocks are evicted in one of those steps."""
        self._lost.append(step)
        self._lost.append(blocks)

    def take(self) -> npt.NDArray[np.int64]:
        """Return what was noted, ``[N, 2 + groups]``, and forget it."""
        single = np.array(self._single, np.int64).reshape(-1, 2 + self._groups)
        if not self._numbers:
            self._forget()
            return single
        rows = np.concatenate([single, self._spread()])
        self._forget()
        return rows[np.argsort(rows[:, 0], kind="stable")]

    # Inside

    def _forget(self) -> None:
        self._single, self._numbers, self._rings, self._lost = (array("q") for _ in range(4))

    def _spread(self) -> npt.NDArray[np.int64]:
        """Return a row of each of the steps that were noted together."""
        numbers = np.array(self._numbers, np.int64).reshape(-1, 3 + self._groups)
        rings = np.array(self._rings, np.int64).reshape(len(numbers), -1, self._size)
        after, steps = numbers[:, 0], numbers[:, 1]
        of = np.repeat(np.arange(len(numbers)), steps)
        first = np.cumsum(steps) - steps
        step = after[of] + 1 + np.arange(len(of)) - first[of]
        now = rings[of, :, step % self._size]  # [N, 1 + 2 windows]
        passed = np.cumsum(now, axis=0)
        passed -= (passed - now)[first][of]
        lost_at, lost = np.array(self._lost, np.int64).reshape(-1, 2).T
        lost_by = np.concatenate([[0], np.cumsum(lost)])
        rows = np.empty((len(of), 2 + self._groups), np.int64)
        rows[:, 0] = step
        rows[:, 1:] = numbers[of, 2:]
        rows[:, 1] -= lost_by[np.searchsorted(lost_at, step, "right")]
        rows[:, 1] += lost_by[np.searchsorted(lost_at, after, "right")][of]
        rows[:, 2:] += passed[:, :1]
        for number, store in enumerate(self._windows):
            gives, passes = passed[:, 1 + 2 * number], passed[:, 2 + 2 * number]
            rows[:, 1] += passes * store.groups
            groups = slice(2 + store.numbers.start, 2 + store.numbers.stop)
            rows[:, groups] -= (gives + passes)[:, None]
        return rows

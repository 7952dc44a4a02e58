"""Tables: the block tables of the running sequences as rows of one array, kept up to date.

An engine that asked for whole tables in every iteration would pay for every block of every sequence. Here a
row gains a number when its sequence gains a block, and is read anew when its blocks may have been exchanged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
import numpy.typing as npt

from pagesim.kvcache import Allocator


class BlockTables:
    """Rows of block ids.

    Args:
        memory: whose tables.
        longest: tokens of the longest sequence.

    Attributes:
        array: int32 ``[rows, blocks]``; beyond a sequence's blocks it holds anything.
    """

    def __init__(self, memory: Allocator, longest: int) -> None:
        self.memory = memory
        self.array: npt.NDArray[np.int32] = np.zeros((16, -(-longest // memory.block_size)), np.int32)
        self._row: dict[int, int] = {}
        self._blocks = [0] * 16  # by row: how many of its entries are right
        self._unused = list(range(16))

    def row(self, sequence: int, length: int) -> int:
        """Return the row of a sequence, in which its first ``length`` tokens find their blocks."""
        row = self._row.get(sequence)
        if row is None:
            row = self._row[sequence] = self._take()
        blocks = -(-length // self.memory.block_size)
        known = self._blocks[row]
        if known < blocks:
            self.array[row, known:blocks] = self.memory.block_table(sequence)[known:blocks]
            self._blocks[row] = blocks
        return row

    def exchanged(self, sequences: Iterable[int]) -> None:
        """Say that these sequences hold other blocks than before."""
        for sequence in sequences:
            if sequence in self._row:
                self._blocks[self._row[sequence]] = 0

    def all_exchanged(self) -> None:
        """Say that any sequence may hold other blocks than before."""
        self._blocks = [0] * len(self._blocks)

    def keep(self, sequences: Collection[int]) -> None:
        """Forget everybody but these sequences; each has a row or gets one when it is asked for."""
        if len(self._row) <= len(sequences) and all(s in sequences for s in self._row):
            return
        for sequence in [s for s in self._row if s not in sequences]:
            row = self._row.pop(sequence)
            self._blocks[row] = 0
            self._unused.append(row)

    def _take(self) -> int:
        if not self._unused:
            rows = len(self.array)
            self.array = np.concatenate([self.array, np.zeros_like(self.array)])
            self._blocks += [0] * rows
            self._unused = list(range(2 * rows - 1, rows - 1, -1))
        return self._unused.pop()

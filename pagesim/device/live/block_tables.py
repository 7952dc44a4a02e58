"""Block tables of the running sequences, as rows of one array that is updated incrementally.

Reading whole tables in every iteration would cost time for every block of every sequence. Here a row gains an
entry when its sequence gains a block, and is read anew only when its blocks may have been exchanged.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from pagesim.kvcache import ContiguousManager, NumberedPrefixManager, PagedManager
from pagesim.scheduling.request import EngineRequest
from pagesim.sim.spans import Sample

AddressedManager = PagedManager | NumberedPrefixManager | ContiguousManager
"""Memory whose blocks have numbers."""


class BlockTables:
    """Rows of block ids.

    Args:
        memory: block manager whose tables are read.
        longest: tokens of the longest sequence.

    Attributes:
        array: block ids, int32 ``[rows, blocks]``; undefined beyond a sequence's blocks.
    """

    def __init__(self, memory: AddressedManager, longest: int) -> None:
        self.memory = memory
        self.array: npt.NDArray[np.int32] = np.zeros((16, -(-longest // memory.block_size)), np.int32)
        self._row: dict[Sample, int] = {}
        self._blocks = [0] * 16  # number of valid entries in each row
        self._unused = list(range(16))

    def row(self, request: EngineRequest, number: int, place: int, length: int) -> int:
        """Return the row of a sample, updated to hold the blocks of its first ``length`` tokens.

        Args:
            request: request of the sample.
            number: number of the sample.
            place: index of the sample among those that have not finished.
            length: number of tokens.
        """
        sample = (request.row, number)
        row = self._row.get(sample)
        if row is None:
            row = self._row[sample] = self._take()
        blocks = -(-length // self.memory.block_size)
        known = self._blocks[row]
        if known < blocks:
            self.array[row, known:blocks] = self.memory.blocks_of(request, place)[known:blocks]
            self._blocks[row] = blocks
        return row

    def exchanged(self, sample: Sample) -> None:
        """Invalidate the row of a sample whose blocks have changed."""
        if sample in self._row:
            self._blocks[self._row[sample]] = 0

    def all_exchanged(self) -> None:
        """Invalidate all rows, since any sample's blocks may have changed."""
        self._blocks = [0] * len(self._blocks)

    def keep(self, samples: Collection[Sample]) -> None:
        """Free the rows of all other samples; each of these has a row or gets one on request."""
        if len(self._row) <= len(samples) and all(sample in samples for sample in self._row):
            return
        for sample in [each for each in self._row if each not in samples]:
            row = self._row.pop(sample)
            self._blocks[row] = 0
            self._unused.append(row)

    def _take(self) -> int:
        if not self._unused:
            rows = len(self.array)
            self.array = np.concatenate([self.array, np.zeros_like(self.array)])
            self._blocks += [0] * rows
            self._unused = list(range(2 * rows - 1, rows - 1, -1))
        return self._unused.pop()

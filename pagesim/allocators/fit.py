"""First fit and best fit: runs of any length, allocated from the low end of a free run."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from pagesim.allocators.allocator import Allocator
from pagesim.allocators.extents import Extent


class FirstFit(Allocator):
    """Allocates from the first free run, by address, that is long enough."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._free: list[Extent] = [(0, num_blocks)]

    def can_allocate(self, blocks: int, times: int = 1) -> bool:
        return sum(length // blocks for _, length in self._free) >= times

    def allocate(self, blocks: int) -> range:
        index = self._choose(blocks)
        if index is None:
            raise self._no_room(blocks)
        first, length = self._free[index]
        if length == blocks:
            del self._free[index]
        else:
            self._free[index] = (first + blocks, length - blocks)
        return range(first, first + blocks)

    def free(self, blocks: Sequence[int]) -> None:
        first, length, free = blocks[0], len(blocks), self._free
        index = bisect_left(free, (first, 0))
        if index < len(free) and first + length == free[index][0]:
            length += free.pop(index)[1]
        if index and sum(free[index - 1]) == first:
            index -= 1
            first, before = free.pop(index)
            length += before
        free.insert(index, (first, length))

    def free_extents(self) -> list[Extent]:
        return list(self._free)

    def _choose(self, blocks: int) -> int | None:
        return next((i for i, (_, length) in enumerate(self._free) if length >= blocks), None)


class BestFit(FirstFit):
    """Allocates from the shortest free run that is long enough; ties go to the lowest address."""

    def _choose(self, blocks: int) -> int | None:
        long_enough = ((length, i) for i, (_, length) in enumerate(self._free) if length >= blocks)
        return min(long_enough, default=(0, None))[1]

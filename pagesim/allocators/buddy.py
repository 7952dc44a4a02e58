"""The buddy allocator of the PagedAttention paper's Orca baselines."""

from __future__ import annotations

from collections.abc import Sequence

from pagesim.allocators.allocator import Allocator
from pagesim.allocators.extents import Extent, join_extents


class Buddy(Allocator):
    """Allocates power-of-two chunks, which are split in halves and merged with their buddies when freed.

    The pool is divided from address 0 on into descending powers of two. An allocation gets the smallest free
    size that is large enough, the most recently freed chunk first, and keeps the low half of each split. A
    freed chunk merges with its buddy (address XOR size) as long as that one is free and whole. The order of
    the free lists decides where chunks are placed, so it is part of the behaviour.

    Args:
        num_blocks: blocks in the pool.
        largest: size of the largest chunks, in blocks, which never merge; a power of two.
    """

    def __init__(self, num_blocks: int, largest: int) -> None:
        super().__init__(num_blocks)
        if largest < 1 or largest & (largest - 1):
            raise ValueError(f"largest is {largest}; it must be a power of two")
        self.largest = largest
        self._free: dict[int, list[int]] = {1 << i: [] for i in range(largest.bit_length())}
        address = 0
        for size in reversed(self._free):
            while address + size <= num_blocks:
                self._free[size].append(address)
                address += size

    def rounded(self, blocks: int) -> int:
        return 1 << (blocks - 1).bit_length()

    def can_allocate(self, blocks: int, times: int = 1) -> bool:
        wanted = self.rounded(blocks)
        found = 0
        for size, chunks in self._free.items():
            if size >= wanted and chunks:
                found += len(chunks) * (size // wanted)
                if found >= times:
                    return True
        return False

    def allocate(self, blocks: int) -> range:
        wanted = self.rounded(blocks)
        size = wanted
        while size <= self.largest and not self._free[size]:
            size *= 2
        if size > self.largest:
            raise self._no_room(blocks)
        first = self._free[size].pop()
        while size > wanted:
            size //= 2
            self._free[size].append(first + size)
        return range(first, first + wanted)

    def free(self, blocks: Sequence[int]) -> None:
        first, size = blocks[0], len(blocks)
        while size < self.largest and first ^ size in self._free[size]:
            self._free[size].remove(first ^ size)
            first = min(first, first ^ size)
            size *= 2
        self._free[size].append(first)

    def free_chunks(self) -> list[Extent]:
        return sorted((first, size) for size, firsts in self._free.items() for first in firsts)

    def free_extents(self) -> list[Extent]:
        return join_extents(
            block for first, size in self.free_chunks() for block in range(first, first + size)
        )

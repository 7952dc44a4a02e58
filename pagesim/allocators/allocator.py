"""Allocator: which blocks of a pool an allocation gets, and which are free."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from pagesim.allocators.extents import Extent


class OutOfBlocks(Exception):
    """Too few blocks are free, or no free run is long enough."""


class Allocator(ABC):
    """Allocates and frees runs of blocks in ``[0, num_blocks)``.

    The blocks of one allocation are adjacent. Subclasses decide where they are placed. They must be
    deterministic, and freed blocks must be usable as before. ``pagesim.testing.check_allocator`` tests an
    allocator.

    Args:
        num_blocks: blocks in the pool.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks

    def rounded(self, blocks: int) -> int:
        """Return how many blocks an allocation of ``blocks`` blocks actually takes."""
        return blocks

    @abstractmethod
    def can_allocate(self, blocks: int, times: int = 1) -> bool:
        """Return whether ``times`` allocations of ``blocks`` blocks each would succeed now."""

    @abstractmethod
    def allocate(self, blocks: int) -> Sequence[int]:
        """Allocate ``rounded(blocks)`` free blocks; return their numbers in token order.

        Raises:
            OutOfBlocks: no free run is long enough.
        """

    @abstractmethod
    def free(self, blocks: Sequence[int]) -> None:
        """Free the blocks that a call of ``allocate`` returned."""

    @abstractmethod
    def free_extents(self) -> list[Extent]:
        """Return the free runs by address, with adjacent ones joined."""

    def free_chunks(self) -> list[Extent]:
        """Return the free runs by address as the allocator stores them; adjacent ones may not be joined."""
        return self.free_extents()

    def check_integrity(self) -> None:
        """Raise AssertionError if the free runs overlap, touch or leave the pool."""
        end = -1
        for first, blocks in self.free_extents():
            assert first > end, f"the free run at block {first} overlaps or touches the one before"
            assert blocks > 0
            end = first + blocks
        assert end <= self.num_blocks

    def _no_room(self, blocks: int) -> OutOfBlocks:
        return OutOfBlocks(f"no run of {blocks} neighbouring blocks is free")

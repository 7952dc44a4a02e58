"""Allocator: which blocks of a pool an allocation takes, and which are free."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from pagesim.allocators.extents import Extent


class OutOfBlocks(Exception):
    """There are not enough free blocks, or no run of them is long enough."""


class Allocator(ABC):
    """Hands out blocks from ``[0, num_blocks)`` and takes them back.

    What one allocation takes are neighbouring blocks. A subclass decides where they lie; it must be
    deterministic, and what was freed must serve as it did before. ``pagesim.testing.check_allocator`` tests
    one.

    Args:
        num_blocks: of the pool.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks

    def rounded(self, blocks: int) -> int:
        """Return how many blocks an allocation of ``blocks`` takes."""
        return blocks

    @abstractmethod
    def can_allocate(self, blocks: int, times: int = 1) -> bool:
        """Say whether ``times`` allocations of ``blocks`` each would succeed now."""

    @abstractmethod
    def allocate(self, blocks: int) -> Sequence[int]:
        """Take ``rounded(blocks)`` free blocks; return their numbers, in the order of the tokens.

        Raises:
            OutOfBlocks: no free run is long enough.
        """

    @abstractmethod
    def free(self, blocks: Sequence[int]) -> None:
        """Take back what ``allocate`` returned."""

    @abstractmethod
    def free_extents(self) -> list[Extent]:
        """Return the free runs by address, neighbours joined."""

    def free_chunks(self) -> list[Extent]:
        """Return the free runs by address as they are kept, neighbours not always joined."""
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

"""Placement: where in a pool of blocks a reservation of neighbouring blocks goes."""

from __future__ import annotations

from abc import ABC, abstractmethod

from pagesim.kvcache.base import OutOfBlocks
from pagesim.kvcache.extents import Extent


class Placement(ABC):
    """Hands out runs of neighbouring blocks from ``[0, num_blocks)``.

    A subclass decides where a run goes; it must be deterministic and must give back exactly what it took.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks

    def rounded(self, blocks: int) -> int:
        """Return how many blocks a run of ``blocks`` really takes."""
        return blocks

    @abstractmethod
    def fits(self, blocks: int, runs: int = 1) -> bool:
        """Say whether ``runs`` separate runs of ``blocks`` could be taken now."""

    @abstractmethod
    def take(self, blocks: int) -> int:
        """Take a run of ``rounded(blocks)`` neighbouring blocks and return its first.

        Raises:
            OutOfBlocks: no run is long enough.
        """

    @abstractmethod
    def give_back(self, first: int, blocks: int) -> None:
        """Return the run that starts at ``first`` and was taken for ``blocks``."""

    @abstractmethod
    def free_extents(self) -> list[Extent]:
        """Return the free runs by address, neighbours joined."""

    def free_chunks(self) -> list[Extent]:
        """Return the free runs by address as this placement keeps them, neighbours not always joined."""
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

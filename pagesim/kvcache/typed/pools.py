"""Pools: memory that is divided among layer types once and for all."""

from __future__ import annotations

from collections.abc import Sequence

from pagesim.kvcache.groups import KVGroup
from pagesim.kvcache.sequence_group import SequenceGroup
from pagesim.kvcache.typed.typed import TypedManager


class PooledManager(TypedManager):
    """Memory of layer types, each with a pool of pages of its own: what one has free no other can take.

    A block is a page of any pool.

    Args:
        sizes: pages of each group's pool.
        groups: a KV group for each layer type; what a page of each is in bytes matters to accounts alone.
        capacity_bytes: of all memory, what no page of a pool takes included; that of the pages when left out.
        longest: tokens of the longest sequence.
        in_flight: tokens that can be scheduled and not be computed yet.

    Attributes:
        free: pages of each pool that no request has.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        groups: Sequence[KVGroup],
        *,
        longest: int,
        in_flight: int,
        capacity_bytes: int | None = None,
    ) -> None:
        super().__init__(sum(sizes), groups, longest=longest, in_flight=in_flight)
        self.sizes = tuple(sizes)
        self.free = list(sizes)
        pools = sum([pages * each for pages, each in zip(sizes, self.group_bytes, strict=True)])
        self.capacity_bytes = pools if capacity_bytes is None else capacity_bytes
        if self.capacity_bytes < pools:
            raise ValueError(f"capacity_bytes is {capacity_bytes}; the pools have {pools}")

    def blocks_taken(self, pages: Sequence[int]) -> int:
        return _counted(pages, self.free)

    def blocks_when_empty(self, pages: Sequence[int]) -> int:
        return _counted(pages, self.sizes)

    def take_pages(self, request: SequenceGroup, pages: Sequence[int]) -> None:
        self.free = [free - taken for free, taken in zip(self.free, pages, strict=True)]
        self.free_blocks = sum(self.free)

    def give_back(self, request: SequenceGroup, group: int, pages: int) -> None:
        self.free[group] += pages
        self.free_blocks += pages

    def check_integrity(self) -> None:
        """Raise AssertionError unless every page is free or held, and none twice."""
        assert min(self.free) >= 0, "a pool has given more pages than it has"
        both = zip(self.free, self.pages, strict=True)
        assert [free + held for free, held in both] == list(self.sizes), "pages are lost, or held twice"
        assert self.free_blocks == sum(self.free), "free blocks are miscounted"


def _counted(pages: Sequence[int], free: Sequence[int]) -> int:
    """Return how many pages are asked for in all; more than all that are free if a pool lacks some."""
    lacking = max([wanted - there for wanted, there in zip(pages, free, strict=True)])
    return sum(pages) if lacking <= 0 else sum(free) + lacking

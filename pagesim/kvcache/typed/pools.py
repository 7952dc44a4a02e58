"""Pools: memory that is divided statically among layer types."""

from __future__ import annotations

from collections.abc import Sequence

from pagesim.kvcache.groups import KVGroup
from pagesim.kvcache.sequence_group import SequenceGroup
from pagesim.kvcache.typed.typed import TypedManager


class PooledManager(TypedManager):
    """A block manager with a separate page pool per layer type; no type can use another's free pages.

    A block is a page of any pool.

    Args:
        sizes: number of pages in each group's pool.
        groups: one KV group per layer type; page sizes in bytes only matter for accounting.
        capacity_bytes: bytes of all memory, including what no pool uses; by default, those of the pages.
        longest: tokens of the longest sequence.
        in_flight: tokens that can be scheduled but not yet computed.

    Attributes:
        free: pages of each pool that no request holds.
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
        """Raise AssertionError unless every page is either free or held exactly once."""
        assert min(self.free) >= 0, "a pool has given more pages than it has"
        both = zip(self.free, self.pages, strict=True)
        assert [free + held for free, held in both] == list(self.sizes), "pages are lost, or held twice"
        assert self.free_blocks == sum(self.free), "free blocks are miscounted"


def _counted(pages: Sequence[int], free: Sequence[int]) -> int:
    """Return the total of the requested pages, or more than all free pages if some pool lacks any."""
    lacking = max([wanted - there for wanted, there in zip(pages, free, strict=True)])
    return sum(pages) if lacking <= 0 else sum(free) + lacking

"""Jenga's memory: small pages for each layer type, in large pages that types allocate and free as a whole."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import lcm

from pagesim.kvcache.groups import KVGroup
from pagesim.kvcache.sequence_group import SequenceGroup
from pagesim.kvcache.typed.two_level import TwoLevelPages
from pagesim.kvcache.typed.typed import TypedManager


class JengaManager(TypedManager):
    """A block manager whose blocks are large pages: the least common multiple of all groups' page sizes.

    Source: Jenga (arXiv 2503.18292v1), sections 4.1 and 4.3, from the paper, not checked against code. Its
    prefix cache is not implemented.

    Args:
        num_blocks: number of large pages.
        groups: one KV group per layer type.
        longest: tokens of the longest sequence.
        in_flight: tokens that can be scheduled but not yet computed.
    """

    cuts_blocks = True

    def __init__(self, num_blocks: int, groups: Sequence[KVGroup], *, longest: int, in_flight: int) -> None:
        super().__init__(num_blocks, groups, longest=longest, in_flight=in_flight)
        self.page_bytes = lcm(*self.group_bytes)
        self.capacity_bytes = num_blocks * self.page_bytes
        self.two_level = TwoLevelPages(num_blocks, [self.page_bytes // each for each in self.group_bytes])
        self._held: dict[SequenceGroup, list[deque[int]]] = {}

    def held_by_groups(self) -> Sequence[int]:
        return (*self.pages, self.two_level.cut)

    def blocks_taken(self, pages: Sequence[int]) -> int:
        return sum(self.two_level.least_cut(pages))

    def blocks_of_all(self, pages: Sequence[int]) -> int:
        # Each request may split a large page before it uses small pages split for another.
        return sum(pages)

    def blocks_when_empty(self, pages: Sequence[int]) -> int:
        return sum(self.two_level.whole_for(pages))

    def take_pages(self, request: SequenceGroup, pages: Sequence[int]) -> None:
        held = self._held.get(request)
        if held is None:
            held = self._held[request] = [deque() for _ in self.groups]
        for own, taken in zip(held, self.two_level.take(request, pages), strict=True):
            own += taken
        self.free_blocks = len(self.two_level.whole)

    def give_back(self, request: SequenceGroup, group: int, pages: int) -> None:
        own = self._held[request][group]
        self.two_level.give_back(group, request, [own.popleft() for _ in range(pages)])
        self.free_blocks = len(self.two_level.whole)

    def release(self, request: SequenceGroup) -> None:
        super().release(request)
        del self._held[request]

    def check_integrity(self) -> None:
        """Raise AssertionError unless every small page is either empty or held exactly once."""
        of_holders = self._held.values()
        held = [[page for own in of_holders for page in own[number]] for number in range(len(self.groups))]
        self.two_level.check_integrity(held)
        assert self.pages == [len(pages) for pages in held], "pages are miscounted"
        assert self.free_blocks == len(self.two_level.whole), "free blocks are miscounted"

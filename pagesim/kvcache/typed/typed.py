"""Typed memory: each KV group takes pages of its own size, and gives them back as its rule says."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Sequence

from pagesim.kvcache.groups import KVGroup, State
from pagesim.kvcache.hybrid.in_turn import InTurnManager
from pagesim.kvcache.ring import Ring
from pagesim.kvcache.sequence_group import SequenceGroup


class Span:
    """What a request has in each group: the pages from one place of its sequence to another.

    Attributes:
        gone: leading pages that it gave back.
        end: pages that it has taken, those included.
    """

    __slots__ = ("end", "gone")

    def __init__(self, groups: int) -> None:
        self.gone = [0] * groups
        self.end = [0] * groups


class TypedManager(InTurnManager):
    """A block manager of single samples, without a prefix cache, whose groups' pages differ.

    A *page* is what a group takes for its ``block_size`` tokens; what a *block* of the memory is, in which
    the contract counts, is a subclass's matter. It answers with more blocks than are free where there is no
    room, be it that only one group lacks it.

    In a step each request in turn gives back what its groups do not need, and then takes pages.

    Args:
        num_blocks: on the device.
        groups: the KV groups of the model. A page of a `State` group must be as long as the longest sequence.
        longest: tokens of the longest sequence.
        in_flight: tokens that can be scheduled and not be computed yet.

    Attributes:
        pages: that requests have in each group.

    Raises:
        ValueError: a group's states can be found again (``State.aligned``).
    """

    equal_blocks = False

    def __init__(self, num_blocks: int, groups: Sequence[KVGroup], *, longest: int, in_flight: int) -> None:
        super().__init__(num_blocks, groups)
        if any(isinstance(group.rule, State) and group.rule.aligned for group in self.groups):
            raise ValueError("aligned states are kept to be found again; this memory caches no prefixes")
        self._longest = longest
        self._in_flight = in_flight
        # What decoding requests take; a state is as long as a sequence and taken once.
        self._rings = [None if group.is_one_block else Ring(group.block_size) for group in self.groups]
        self.pages = [0] * len(self.groups)

    # What a block is

    @abstractmethod
    def blocks_taken(self, pages: Sequence[int]) -> int:
        """Return the blocks that one request takes for so many pages of each group, in its turn.

        More than are free where there is no room for them.
        """

    def blocks_of_all(self, pages: Sequence[int]) -> int:
        """Return the most blocks that several requests take for so many pages in all, whichever takes which.

        More than are free where there may be no room for them.
        """
        return self.blocks_taken(pages)

    @abstractmethod
    def blocks_when_empty(self, pages: Sequence[int]) -> int:
        """Return the blocks that one request takes in empty memory; more than there are if these are few."""

    @abstractmethod
    def take_pages(self, request: SequenceGroup, pages: Sequence[int]) -> None:
        """Take so many pages of each group, for which there is room."""

    @abstractmethod
    def give_back(self, request: SequenceGroup, group: int, pages: int) -> None:
        """Give a request's first so many pages of a group back."""

    # Questions

    def held_by_groups(self) -> Sequence[int]:
        return tuple(self.pages)

    def held_blocks(self, request: SequenceGroup) -> int:
        """Return the pages that a request has."""
        span: Span = request.block_state
        return sum(span.end) - sum(span.gone)

    def held_by_group(self, request: SequenceGroup) -> list[tuple[int, int]]:
        length, span = self.length(request), request.block_state
        return [
            (length - gone * group.block_size, end - gone)
            for group, gone, end in zip(self.groups, span.gone, span.end, strict=True)
        ]

    def blocks_for(self, tokens: int) -> int:
        return self.blocks_when_empty(self._most(tokens))

    def blocks_to_admit(self, request: SequenceGroup, tokens: int) -> int:
        return self.blocks_taken(self._pages(tokens))

    def could_admit(self, request: SequenceGroup, tokens: int, spare: int = 0) -> bool:
        return self.blocks_when_empty(self._pages(tokens)) + spare <= self.num_blocks

    def can_admit(self, request: SequenceGroup, tokens: int, spare: int = 0, length: int = 0) -> bool:
        room = self.free_blocks - spare
        return self.blocks_to_admit(request, tokens) <= room and self.blocks_taken(self._most(length)) <= room

    def blocks_needed(self, steps: int = 1) -> int:
        return self.blocks_of_all(self._grown(steps))

    def steps_that_fit(self, steps: int, spare: int) -> int:
        steps = super().steps_that_fit(steps, spare)
        return bisect_right(range(1, steps + 1), self.free_blocks - spare, key=self.blocks_needed)

    def blocks_to_extend(self, request: SequenceGroup, tokens: int, computed: int | None = None) -> int:
        return self.blocks_taken(self._missing(request, self.length(request) + tokens))

    # Changes

    def admit(self, request: SequenceGroup, tokens: int) -> None:
        self._check_single(request)
        self._check_room(self.blocks_to_admit(request, tokens))
        request.block_state = Span(len(self.groups))
        self._take_for(request, tokens)

    def release(self, request: SequenceGroup) -> None:
        if request.decodes:
            self.stop_decoding(request)
        span = request.block_state
        for group, (gone, end) in enumerate(zip(span.gone, span.end, strict=True)):
            self._give(request, group, end - gone)

    # Inside

    def _pages(self, tokens: int) -> list[int]:
        """Return the pages of a sequence of so many tokens of which nothing was given back."""
        return [-(-tokens // group.block_size) for group in self.groups]

    def _most(self, tokens: int) -> list[int]:
        """Return the pages that a sequence of so many tokens ever holds at once."""
        return [group.most(tokens, self._longest, self._in_flight) for group in self.groups]

    def _missing(self, request: SequenceGroup, length: int) -> list[int]:
        """Return the pages that a request takes to have so many tokens."""
        return [
            max(0, pages - end)
            for pages, end in zip(self._pages(length), request.block_state.end, strict=True)
        ]

    def _grown(self, steps: int) -> list[int]:
        """Return the pages that decoding requests take over the next steps."""
        return [0 if ring is None else ring.total(self.steps, steps) for ring in self._rings]

    def _take_for(self, request: SequenceGroup, length: int) -> None:
        self._reach(request, length)
        request.tokens = length

    def _reach(self, request: SequenceGroup, length: int) -> None:
        missing = self._missing(request, length)
        if not any(missing):
            return
        self.take_pages(request, missing)
        end = request.block_state.end
        for group, pages in enumerate(missing):
            end[group] += pages
            self.pages[group] += pages

    def _release_skipped(self, request: SequenceGroup, processed: int) -> None:
        span = request.block_state
        for number, group in enumerate(self.groups):
            pages = min(group.released(processed), span.end[number]) - span.gone[number]
            if pages > 0:
                self._give(request, number, pages)
                span.gone[number] += pages

    def _give(self, request: SequenceGroup, group: int, pages: int) -> None:
        self.give_back(request, group, pages)
        self.pages[group] -= pages

    def _enter_ring(self, request: SequenceGroup, times: int) -> None:
        for ring in self._rings:
            if ring is not None:
                ring.enter(request.length_offset, times)

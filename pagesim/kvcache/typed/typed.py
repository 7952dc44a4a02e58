"""Typed memory: each KV group allocates pages of its own size and frees them by its rule."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Sequence

from pagesim.kvcache.groups import KVGroup, State
from pagesim.kvcache.hybrid.in_turn import InTurnManager
from pagesim.kvcache.ring import Ring
from pagesim.kvcache.sequence_group import SequenceGroup


class PageSpan:
    """The range of pages that a request holds in each group.

    Attributes:
        gone: leading pages that it has freed, per group.
        end: pages that it has allocated, including freed ones, per group.
    """

    __slots__ = ("end", "gone")

    def __init__(self, groups: int) -> None:
        self.gone = [0] * groups
        self.end = [0] * groups


class TypedManager(InTurnManager):
    """A block manager for single samples, without a prefix cache, whose groups differ in page size.

    A *page* is what a group allocates for its ``block_size`` tokens. Subclasses define the *blocks* in which
    `BlockManager` counts. If any group lacks room, they report more blocks than are free.

    In a step each request in turn frees the pages that its groups no longer need, then allocates new ones.

    Args:
        num_blocks: blocks on the device.
        groups: the KV groups of the model. A page of a `State` group must be as long as the longest sequence.
        longest: tokens of the longest sequence.
        in_flight: tokens that can be scheduled but not yet computed.

    Attributes:
        pages: pages that requests hold in each group.

    Raises:
        ValueError: a group's states are to be cached (``State.aligned``).
    """

    equal_blocks = False

    def __init__(self, num_blocks: int, groups: Sequence[KVGroup], *, longest: int, in_flight: int) -> None:
        super().__init__(num_blocks, groups)
        if any(isinstance(group.rule, State) and group.rule.aligned for group in self.groups):
            raise ValueError("aligned states are kept to be found again; this memory caches no prefixes")
        self._longest = longest
        self._in_flight = in_flight
        # Pages that decoding requests allocate; a state is as long as a sequence and allocated once.
        self._rings = [None if group.is_one_block else Ring(group.block_size) for group in self.groups]
        self.pages = [0] * len(self.groups)

    # What a block is

    @abstractmethod
    def blocks_taken(self, pages: Sequence[int]) -> int:
        """Return the blocks that one request takes, in its turn, for these pages of each group.

        The result exceeds the free blocks if there is no room for them.
        """

    def blocks_of_all(self, pages: Sequence[int]) -> int:
        """Return the most blocks that several requests can take for these pages, however divided among them.

        The result exceeds the free blocks if there may be no room for them.
        """
        return self.blocks_taken(pages)

    @abstractmethod
    def blocks_when_empty(self, pages: Sequence[int]) -> int:
        """Return the blocks that one request takes in empty memory: more than exist if they do not fit."""

    @abstractmethod
    def take_pages(self, request: SequenceGroup, pages: Sequence[int]) -> None:
        """Allocate these pages of each group; there is room for them."""

    @abstractmethod
    def give_back(self, request: SequenceGroup, group: int, pages: int) -> None:
        """Free a request's first ``pages`` pages of a group."""

    # Questions

    def held_by_groups(self) -> Sequence[int]:
        return tuple(self.pages)

    def held_blocks(self, request: SequenceGroup) -> int:
        """Return the pages that a request holds."""
        span: PageSpan = request.block_state
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
        request.block_state = PageSpan(len(self.groups))
        self._take_for(request, tokens)

    def release(self, request: SequenceGroup) -> None:
        if request.decodes:
            self.stop_decoding(request)
        span = request.block_state
        for group, (gone, end) in enumerate(zip(span.gone, span.end, strict=True)):
            self._give(request, group, end - gone)

    # Inside

    def _pages(self, tokens: int) -> list[int]:
        """Return the pages of a sequence of ``tokens`` tokens before any are freed, per group."""
        return [-(-tokens // group.block_size) for group in self.groups]

    def _most(self, tokens: int) -> list[int]:
        """Return the most pages that a sequence of ``tokens`` tokens holds at once, per group."""
        return [group.most(tokens, self._longest, self._in_flight) for group in self.groups]

    def _missing(self, request: SequenceGroup, length: int) -> list[int]:
        """Return the further pages that a request needs for ``length`` tokens, per group."""
        return [
            max(0, pages - end)
            for pages, end in zip(self._pages(length), request.block_state.end, strict=True)
        ]

    def _grown(self, steps: int) -> list[int]:
        """Return the pages that decoding requests allocate in the next steps, per group."""
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

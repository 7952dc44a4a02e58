"""Counted hybrid memory: what a KV group holds of a request follows from its length and how it got there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Final, NamedTuple

from pagesim.kvcache.groups import ChunkedLocal, KVGroup, SlidingWindow, State
from pagesim.kvcache.sequence_group import SequenceGroup
from pagesim.kvcache.single import SingleSampleManager
from pagesim.setup.compiled import mypyc_attr

NEVER: Final = (1 << 62) - 1
"""A length in tokens that no sequence reaches."""


class Kind(NamedTuple):
    """Groups of one rule and one block size that give blocks back before the end.

    Attributes:
        rule: by which they do.
        block_size: tokens.
        groups: how many there are.
    """

    rule: SlidingWindow | ChunkedLocal
    block_size: int
    groups: int

    def released(self, processed: int) -> int:
        """Return the leading blocks that each group does not need once ``processed`` tokens have run."""
        skipped = self.rule.skipped(processed)
        return skipped // self.block_size if skipped else 0

    def processed_at(self, released: int) -> int:
        """Return after how many tokens it does not need so many leading blocks (1 or more)."""
        return self.rule.processed_at(released * self.block_size)


@mypyc_attr(allow_interpreted_subclasses=True)
class Released:
    """What a request has given back.

    Attributes:
        blocks: of each kind, the leading blocks that each of its groups has given back.
        since: decode steps that had been taken when the request began to decode.
    """

    __slots__ = ("blocks", "since")

    def __init__(self, blocks: list[int], since: int = 0) -> None:
        self.blocks = blocks
        self.since = since


@mypyc_attr(allow_interpreted_subclasses=True)
class CountedHybridManager(SingleSampleManager):
    """Counts what `HybridManager` without a prefix cache holds; blocks are never named.

    What decoding requests take is a `Ring`, which a request enters once and leaves once, however long it
    decodes. What a window or a chunk gives back is looked at, request by request, at the step at which the
    next block goes, which is known beforehand.

    Args:
        num_blocks: on the device.
        groups: the KV groups of the model. A block of a `State` group is as long as the longest sequence.
        longest: tokens of the longest sequence.
        in_flight: tokens that can be scheduled and not be computed yet.

    Raises:
        ValueError: a group's states can be found again (``State.aligned``).
    """

    __slots__ = (
        "_begun_at",
        "_due",
        "_entries",
        "_kind_of",
        "_kinds",
        "_rooms",
        "_safe",
        "_states",
    )

    def __init__(self, num_blocks: int, groups: Sequence[KVGroup], *, longest: int, in_flight: int) -> None:
        super().__init__(num_blocks, groups)
        rules = Counter((group.rule, group.block_size) for group in self.groups)
        if any(isinstance(rule, State) and rule.aligned for rule, _ in rules):
            raise ValueError("aligned states are kept in tables; use HybridManager")
        # (tokens a block, blocks that a sequence holds at once at most, groups)
        self._rooms = tuple(
            [
                (size, rule.most_blocks(size, longest, in_flight), count)
                for (rule, size), count in rules.items()
            ]
        )
        self._states = sum([group.is_one_block for group in self.groups])
        self._kinds = tuple(
            [
                Kind(rule, size, count)
                for (rule, size), count in rules.items()
                if isinstance(rule, SlidingWindow | ChunkedLocal)
            ]
        )
        places: dict[object, int] = {kind[:2]: number for number, kind in enumerate(self._kinds)}
        self._kind_of = tuple([places.get((group.rule, group.block_size)) for group in self.groups])
        # Tokens below which nothing is given back.
        self._safe = min([kind.processed_at(1) for kind in self._kinds], default=NEVER)
        # When requests are looked at: (step, entry, request, its `Released` while it decodes).
        self._due: list[tuple[int, int, SequenceGroup, Released]] = []
        self._entries = 0
        # Steps that had been taken when a request last began to decode that gives something back at once.
        self._begun_at = -1

    # Questions

    def held_blocks(self, request: SequenceGroup) -> int:
        blocks = self._whole(self.length(request))
        for gone, kind in zip(request.block_state.blocks, self._kinds, strict=True):
            blocks -= gone * kind.groups
        return blocks

    def held_by_group(self, request: SequenceGroup) -> list[tuple[int, int]]:
        length, released = self.length(request), request.block_state.blocks
        found = []
        for group, kind in zip(self.groups, self._kind_of, strict=True):
            gone, size = 0 if kind is None else released[kind], group.block_size
            found.append((length - gone * size, -(-length // size) - gone))
        return found

    def blocks_for(self, tokens: int) -> int:
        blocks = 0
        for size, most, groups in self._rooms:
            own = -(-tokens // size)
            blocks += (own if most is None or own < most else most) * groups
        return blocks

    def blocks_to_admit(self, request: SequenceGroup, tokens: int) -> int:
        return self._whole(tokens)

    def can_admit(self, request: SequenceGroup, tokens: int, spare: int = 0, length: int = 0) -> bool:
        room = self.free_blocks - spare
        if self._whole(max(tokens, length)) <= room:
            return True  # even if nothing is given back
        return self.blocks_for(length) <= room and self._whole(tokens) <= room

    def blocks_to_extend(self, request: SequenceGroup, tokens: int, computed: int | None = None) -> int:
        length = self.length(request)
        return self._whole(length + tokens) - self._whole(length)

    def steps_that_fit(self, steps: int, spare: int) -> int:
        if self.steps_in_flight and self._begun_at == self.steps:
            return 0
        return super().steps_that_fit(steps, spare)

    # Changes

    def admit(self, request: SequenceGroup, tokens: int) -> None:
        self._check_single(request)
        blocks = self._whole(tokens)
        self._check_room(blocks)
        self.free_blocks -= blocks
        request.tokens = tokens
        request.block_state = Released([0] * len(self._kinds))

    def start_decoding(self, request: SequenceGroup) -> None:
        super().start_decoding(request)
        request.block_state = released = Released(request.block_state.blocks, self.steps)
        if request.tokens >= self._safe:
            self._begun_at = self.steps
            self._look_at(self.steps + 1, request, released)
        elif self._kinds:
            self._look_again(request, released)

    def stop_decoding(self, request: SequenceGroup) -> None:
        super().stop_decoding(request)
        if self.steps > request.block_state.since:
            request.inflight_tokens = self.steps_in_flight
        request.block_state = Released(request.block_state.blocks)

    def free_skipped_blocks(self, request: SequenceGroup) -> None:
        processed = request.tokens - request.inflight_tokens
        if processed >= self._safe:
            self._give_back(request.block_state, processed)

    def allocate_step(self, steps: int = 1) -> int:
        blocks = self._takes.total(self.steps, steps)
        self._check_room(blocks)
        self.free_blocks -= blocks
        self.steps = end = self.steps + steps
        due = self._due
        while due and due[0][0] <= end:
            _, _, request, released = heappop(due)
            if request.block_state is released:
                self._look(request, released)
        return 0

    def release(self, request: SequenceGroup) -> None:
        self.free_blocks += self.held_blocks(request)
        if request.decodes:
            self.stop_decoding(request)

    # Inside

    def _whole(self, tokens: int) -> int:
        """Return the blocks of a sequence of so many tokens of which nothing was given back."""
        blocks = self._states
        for size, groups in self._sizes:
            blocks += -(-tokens // size) * groups
        return blocks

    def _take_for(self, request: SequenceGroup, length: int) -> None:
        self.free_blocks -= self._whole(length) - self._whole(request.tokens)
        request.tokens = length

    def _give_back(self, released: Released, processed: int) -> None:
        """Give back what a request does not need any more once so many of its tokens have run."""
        blocks = released.blocks
        for number, kind in enumerate(self._kinds):
            more = kind.released(processed) - blocks[number]
            if more > 0:
                blocks[number] += more
                self.free_blocks += more * kind.groups

    def _look(self, request: SequenceGroup, released: Released) -> None:
        """Give back what a decoding request gives back up to this step; note when to look again."""
        in_flight = request.inflight_tokens
        if self.steps > released.since + 1:
            in_flight = self.steps_in_flight
        self._give_back(released, request.length_offset + self.steps - 1 - in_flight)
        self._look_again(request, released)

    def _look_again(self, request: SequenceGroup, released: Released) -> None:
        """Note at which step a decoding request gives back next."""
        processed = NEVER
        for kind, gone in zip(self._kinds, released.blocks, strict=True):
            at = kind.processed_at(gone + 1)
            if at < processed:
                processed = at
        step = processed - request.length_offset + 1 + self.steps_in_flight
        self._look_at(max(self.steps + 1, step), request, released)

    def _look_at(self, step: int, request: SequenceGroup, released: Released) -> None:
        self._entries += 1
        heappush(self._due, (step, self._entries, request, released))

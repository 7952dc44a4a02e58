"""Counted hybrid memory: what a KV group holds of a request follows from its length and how it got there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import heappop, heappush
from math import lcm

from pagesim.allocators import OutOfBlocks
from pagesim.kvcache.groups import ChunkedLocal, KVGroup, SlidingWindow, State
from pagesim.kvcache.hybrid.decoding import NEVER, RINGED, Decoding, Kind
from pagesim.kvcache.ring import Ring, lasts
from pagesim.kvcache.sequence_group import SequenceGroup
from pagesim.kvcache.single import SingleSampleManager
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class CountedHybridManager(SingleSampleManager):
    """Counts what `HybridManager` without a prefix cache holds; blocks are never named.

    What decoding requests take is a `Ring`, which a request enters once and leaves once, however long it
    decodes. What they take less what full windows give back is a second one. When a window is full, and when
    a chunk is given back, which is much at once and seldom, a request is *looked at*: at a step that is known
    beforehand. So is one in its first step, when it may still attend to what was in flight.

    Args:
        num_blocks: on the device.
        groups: see `BlockManager`. A block of a `State` group must be as long as the longest sequence.
        longest: tokens of the longest sequence.
        in_flight: tokens that can be scheduled and not be computed yet.

    Raises:
        ValueError: a group's states can be found again (``State.aligned``).
    """

    __slots__ = (
        "_begun_at",
        "_changes",
        "_due",
        "_entries",
        "_kind_of",
        "_kinds",
        "_nothing",
        "_rooms",
        "_safe",
        "_sizes",
        "_states",
        "_takes",
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
        self._states = sum([count for (rule, _), count in rules.items() if isinstance(rule, State)])
        sizes = Counter(group.block_size for group in self.groups if not isinstance(group.rule, State))
        self._sizes = tuple(sizes.items())  # (tokens a block, groups)
        self._kinds = tuple(
            [
                Kind(rule, size, count)
                for (rule, size), count in rules.items()
                if isinstance(rule, SlidingWindow | ChunkedLocal)
            ]
        )
        places: dict[object, int] = {kind[:2]: number for number, kind in enumerate(self._kinds)}
        self._kind_of = tuple([places.get((group.rule, group.block_size)) for group in self.groups])
        self._nothing = (0,) * len(self._kinds)
        # Tokens below which nothing is given back.
        self._safe = min([kind.processed_at(1) for kind in self._kinds], default=NEVER)
        self._takes = Ring(lcm(*sizes))
        self._changes = Ring(self._takes.period)
        # When requests are looked at: (step, entry, request, what is kept with it while the entry holds).
        self._due: list[tuple[int, int, SequenceGroup, Decoding]] = []
        self._entries = 0
        # Steps that had been taken when a request last began to decode that gives something back at once.
        self._begun_at = -1

    # Questions

    def held_blocks(self, request: SequenceGroup) -> int:
        return self._held(request, self.length(request))

    def held_by_group(self, request: SequenceGroup) -> list[tuple[int, int]]:
        length = self.length(request)
        if length < self._safe:
            return [(length, -(-length // group.block_size)) for group in self.groups]
        released = self._released(request, length)
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

    def blocks_needed(self, steps: int = 1) -> int:
        return self._takes.total(self.steps, steps)

    def blocks_to_extend(self, request: SequenceGroup, tokens: int, computed: int | None = None) -> int:
        length = self.length(request)
        return self._whole(length + tokens) - self._whole(length)

    def steps_that_fit(self, steps: int, spare: int) -> int:
        if self.steps_in_flight and self._begun_at == self.steps:
            return 0
        takes, room = self._takes, self.free_blocks - spare
        # A period at most takes so much: nearly always answer enough.
        if (steps // takes.period + 1) * takes.whole <= room:
            return steps
        if room < 0:
            return 0
        taken = takes.in_turn(self.steps)
        left = self._changes.in_turn(self.steps)
        # A step takes before it gives back. What a look gives back comes on top.
        given = [take - change for take, change in zip(taken, left, strict=True)]
        changes = [taken[0], *[take - give for take, give in zip(taken[1:], given, strict=False)]]
        return lasts(changes, self._changes.whole, steps, room)

    # Changes

    def admit(self, request: SequenceGroup, tokens: int) -> None:
        self._check_single(request)
        self._take(self._whole(tokens))
        request.tokens = tokens
        request.block_state = self._nothing

    def stop_decoding(self, request: SequenceGroup) -> None:
        length = self.length(request)
        released = self._released(request, length)
        if self.steps > request.block_state.since:
            request.inflight_tokens = self.steps_in_flight * request.tokens_per_step
        self._rest(request)
        request.tokens = length
        request.block_state = released

    def free_skipped_blocks(self, request: SequenceGroup) -> None:
        processed = request.tokens - request.inflight_tokens
        if processed < self._safe:
            return
        released = tuple(
            [
                max(gone, kind.released(processed))
                for gone, kind in zip(request.block_state, self._kinds, strict=True)
            ]
        )
        self.free_blocks += self._blocks(released) - self._blocks(request.block_state)
        request.block_state = released

    def allocate_step(self, steps: int = 1) -> int:
        takes = self._takes
        # A period at most takes so much: nearly always there is.
        if (steps // takes.period + 1) * takes.whole > self.free_blocks:
            blocks = takes.total(self.steps, steps)
            if blocks > self.free_blocks and self.steps_that_fit(steps, 0) < steps:
                raise OutOfBlocks(f"{steps} more steps take {blocks} blocks, {self.free_blocks} are free")
        if steps:
            self.free_blocks -= self._changes.total(self.steps, steps)
            self._pass(steps)
        return 0

    def try_allocate_step(self, spare: int) -> int:
        takes = self._takes
        at = (self.steps + 1) % takes.period
        if self.free_blocks - takes.counts[at] < spare:
            return -1
        self.free_blocks -= self._changes.counts[at]
        self._pass(1)
        return 0

    def release(self, request: SequenceGroup) -> None:
        self.free_blocks += self._held(request, self.length(request))
        self._rest(request)
        request.block_state = self._nothing

    # Blocks held

    def _whole(self, tokens: int) -> int:
        """Return the blocks of a sequence of so many tokens of which nothing was given back."""
        blocks = self._states
        for size, groups in self._sizes:
            blocks += -(-tokens // size) * groups
        return blocks

    def _held(self, request: SequenceGroup, length: int) -> int:
        blocks = self._whole(length)
        if length >= self._safe:
            blocks -= self._blocks(self._released(request, length))
        return blocks

    def _released(self, request: SequenceGroup, length: int) -> tuple[int, ...]:
        """Return the blocks that each group of each kind has given back of a request of this length."""
        if length < self._safe:
            return self._nothing
        kept = request.block_state
        if not request.decodes:
            released: tuple[int, ...] = kept
            return released
        processed = length - (self.steps_in_flight + 1) * request.tokens_per_step
        return tuple(
            [
                kind.released(processed) if gone == RINGED else gone
                for gone, kind in zip(kept.released, self._kinds, strict=True)
            ]
        )

    def _blocks(self, released: Sequence[int]) -> int:
        """Return the blocks that all groups have given back, of those of each group of each kind."""
        return sum([gone * kind.groups for gone, kind in zip(released, self._kinds, strict=True)])

    def _take(self, blocks: int) -> None:
        self._check_room(blocks)
        self.free_blocks -= blocks

    def _take_for(self, request: SequenceGroup, length: int) -> None:
        self.free_blocks -= self._whole(length) - self._whole(request.tokens)
        request.tokens = length

    # Steps

    def _pass(self, steps: int) -> None:
        """Take steps of growth, whose blocks were counted as far as they are in a ring."""
        self.steps = end = self.steps + steps
        due = self._due
        while due and due[0][0] <= end:
            _, _, request, kept = heappop(due)
            if request.block_state is kept:
                self._look(request, kept)

    def _step_of(self, request: SequenceGroup, processed: int) -> int:
        """Return at which step of a decoding request so many tokens have run, if it is not its first one."""
        return -(-(processed - request.length_offset) // request.tokens_per_step) + 1 + self.steps_in_flight

    def _look_at(self, step: int, request: SequenceGroup, kept: Decoding) -> None:
        self._entries += 1
        heappush(self._due, (step, self._entries, request, kept))

    def _look(self, request: SequenceGroup, kept: Decoding) -> None:
        """Give back what a decoding request has given back after this step; note when to look again."""
        steps, growth = self.steps, request.tokens_per_step
        before = request.length_offset + growth * (steps - 1)
        later = before - self.steps_in_flight * growth  # as every further step goes on from
        processed = before - request.inflight_tokens if steps == kept.since + 1 else later
        again = NEVER
        for number, kind in enumerate(self._kinds):
            gone = kept.released[number]
            if gone == RINGED:
                continue
            needless = kind.released(processed)
            released = gone if gone > needless else needless
            self.free_blocks += (released - gone) * kind.groups
            if processed != later:
                needless = kind.released(later)
            if 0 < released == needless and isinstance(kind.rule, SlidingWindow):
                kept.released[number] = RINGED
                self._count_window(request, kind, 1)
                continue
            kept.released[number] = released
            again = min(again, max(steps + 1, self._step_of(request, kind.processed_at(released + 1))))
        if again < NEVER:
            self._look_at(again, request, kept)

    def _count_window(self, request: SequenceGroup, kind: Kind, times: int) -> None:
        """Count what a full window of a decoding request gives back; fewer times than 0 for no longer."""
        assert isinstance(kind.rule, SlidingWindow)
        # It gives back a block when the tokens that it skips reach a multiple of the block size.
        behind = request.tokens_per_step * (1 + self.steps_in_flight) + kind.rule.window - 2
        self._changes.enter(
            request.length_offset - behind, request.tokens_per_step, -times * kind.groups, kind.block_size
        )

    def _enter(self, request: SequenceGroup) -> None:
        self._enter_rings(request, 1)
        request.block_state = kept = Decoding(request.block_state, self.steps)
        if self._kinds:
            if request.tokens < self._safe:
                self._look_at(self._step_of(request, self._safe), request, kept)
            else:
                self._begun_at = self.steps
                self._look_at(self.steps + 1, request, kept)

    def _leave(self, request: SequenceGroup) -> None:
        kept = request.block_state
        self._enter_rings(request, -1)
        for kind, gone in zip(self._kinds, kept.released, strict=True):
            if gone == RINGED:
                self._count_window(request, kind, -1)

    def _enter_rings(self, request: SequenceGroup, times: int) -> None:
        """Count what a request takes as it decodes; with ``times`` -1, no longer."""
        for size, groups in self._sizes:
            for ring in (self._takes, self._changes):
                ring.enter(request.length_offset, request.tokens_per_step, times * groups, size)

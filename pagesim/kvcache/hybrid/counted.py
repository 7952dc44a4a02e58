"""Counted hybrid memory: what a KV group holds of a request follows from its length and how it got there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import heappop, heappush
from math import lcm

from pagesim.kvcache.base import OutOfBlocks
from pagesim.kvcache.groups import ChunkedLocal, KVGroup, SlidingWindow, State
from pagesim.kvcache.holder import Holder
from pagesim.kvcache.hybrid.decoding import NEVER, RINGED, Decoding, Kind
from pagesim.kvcache.ring import Ring, lasts
from pagesim.kvcache.single import SingleSampleManager
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class CountedHybridManager(SingleSampleManager):
    """Counts what `HybridManager` without a prefix cache holds; blocks are never named.

    What decoding holders take is a `Ring`, which a holder enters once and leaves once, however long it
    decodes. What they take less what full windows give back is a second one. When a window is full, and when
    a chunk is given back, which is much at once and seldom, a holder is *looked at*: at a step that is known
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
        # When holders are looked at: (step, entry, holder, what is kept with it while the entry holds).
        self._due: list[tuple[int, int, Holder, Decoding]] = []
        self._entries = 0
        # Steps that had been taken when a holder last began to decode that gives something back at once.
        self._begun_at = -1

    # Questions

    def held_blocks(self, holder: Holder) -> int:
        return self._held(holder, self.length(holder))

    def held_by_group(self, holder: Holder) -> list[tuple[int, int]]:
        length = self.length(holder)
        if length < self._safe:
            return [(length, -(-length // group.block_size)) for group in self.groups]
        released = self._released(holder, length)
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

    def blocks_to_admit(self, holder: Holder, tokens: int) -> int:
        return self._whole(tokens)

    def can_admit_whole(self, holder: Holder, tokens: int, length: int, spare: int = 0) -> bool:
        room = self.free_blocks - spare
        if self._whole(length) <= room:
            return True  # even if nothing is given back
        return self.blocks_for(length) <= room and self._whole(tokens) <= room

    def blocks_needed(self, steps: int = 1) -> int:
        return self._takes.total(self.steps, steps)

    def blocks_needed_by(self, holder: Holder) -> int:
        length = self.length(holder)
        return self._whole(length + holder.growth) - self._whole(length)

    def blocks_to_extend(self, holder: Holder, tokens: int) -> int:
        return self._whole(holder.tokens + tokens) - self._whole(holder.tokens)

    def steps_that_fit(self, steps: int, spare: int) -> int:
        if self.lag and self._begun_at == self.steps:
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

    def admit(self, holder: Holder, tokens: int) -> None:
        self._check_single(holder)
        self._take(self._whole(tokens))
        holder.tokens = tokens
        holder.kv = self._nothing

    def stop_decoding(self, holder: Holder) -> None:
        length = self.length(holder)
        released = self._released(holder, length)
        if self.steps > holder.kv.since:
            holder.in_flight = self.lag * holder.growth
        self._rest(holder)
        holder.tokens = length
        holder.kv = released

    def free_skipped_blocks(self, holder: Holder) -> None:
        processed = holder.tokens - holder.in_flight
        if processed < self._safe:
            return
        released = tuple(
            [max(gone, kind.released(processed)) for gone, kind in zip(holder.kv, self._kinds, strict=True)]
        )
        self.free_blocks += self._blocks(released) - self._blocks(holder.kv)
        holder.kv = released

    def grow(self, steps: int = 1) -> int:
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

    def try_grow(self, spare: int) -> int:
        takes = self._takes
        at = (self.steps + 1) % takes.period
        if self.free_blocks - takes.counts[at] < spare:
            return -1
        self.free_blocks -= self._changes.counts[at]
        self._pass(1)
        return 0

    def release(self, holder: Holder) -> None:
        self.free_blocks += self._held(holder, self.length(holder))
        self._rest(holder)
        holder.kv = self._nothing

    # Blocks held

    def _whole(self, tokens: int) -> int:
        """Return the blocks of a sequence of so many tokens of which nothing was given back."""
        blocks = self._states
        for size, groups in self._sizes:
            blocks += -(-tokens // size) * groups
        return blocks

    def _held(self, holder: Holder, length: int) -> int:
        blocks = self._whole(length)
        if length >= self._safe:
            blocks -= self._blocks(self._released(holder, length))
        return blocks

    def _released(self, holder: Holder, length: int) -> tuple[int, ...]:
        """Return the blocks that each group of each kind has given back of a holder of this length."""
        if length < self._safe:
            return self._nothing
        kept = holder.kv
        if not holder.decodes:
            released: tuple[int, ...] = kept
            return released
        processed = length - (self.lag + 1) * holder.growth
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

    def _take_for(self, holder: Holder, length: int) -> None:
        self.free_blocks -= self._whole(length) - self._whole(holder.tokens)
        holder.tokens = length

    # Steps

    def _pass(self, steps: int) -> None:
        """Take steps of growth, whose blocks were counted as far as they are in a ring."""
        self.steps = end = self.steps + steps
        due = self._due
        while due and due[0][0] <= end:
            _, _, holder, kept = heappop(due)
            if holder.kv is kept:
                self._look(holder, kept)

    def _step_of(self, holder: Holder, processed: int) -> int:
        """Return at which step of a decoding holder so many tokens have run, if it is not its first one."""
        return -(-(processed - holder.base) // holder.growth) + 1 + self.lag

    def _look_at(self, step: int, holder: Holder, kept: Decoding) -> None:
        self._entries += 1
        heappush(self._due, (step, self._entries, holder, kept))

    def _look(self, holder: Holder, kept: Decoding) -> None:
        """Give back what a decoding holder has given back after this step; note when to look again."""
        steps, growth = self.steps, holder.growth
        before = holder.base + growth * (steps - 1)
        later = before - self.lag * growth  # as every further step goes on from
        processed = before - holder.in_flight if steps == kept.since + 1 else later
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
                self._count_window(holder, kind, 1)
                continue
            kept.released[number] = released
            again = min(again, max(steps + 1, self._step_of(holder, kind.processed_at(released + 1))))
        if again < NEVER:
            self._look_at(again, holder, kept)

    def _count_window(self, holder: Holder, kind: Kind, times: int) -> None:
        """Count what a full window of a decoding holder gives back; fewer times than 0 for no longer."""
        assert isinstance(kind.rule, SlidingWindow)
        # It gives back a block when the tokens that it skips reach a multiple of the block size.
        behind = holder.growth * (1 + self.lag) + kind.rule.window - 2
        self._changes.enter(holder.base - behind, holder.growth, -times * kind.groups, kind.block_size)

    def _enter(self, holder: Holder) -> None:
        self._enter_rings(holder, 1)
        holder.kv = kept = Decoding(holder.kv, self.steps)
        if self._kinds:
            if holder.tokens < self._safe:
                self._look_at(self._step_of(holder, self._safe), holder, kept)
            else:
                self._begun_at = self.steps
                self._look_at(self.steps + 1, holder, kept)

    def _leave(self, holder: Holder) -> None:
        kept = holder.kv
        self._enter_rings(holder, -1)
        for kind, gone in zip(self._kinds, kept.released, strict=True):
            if gone == RINGED:
                self._count_window(holder, kind, -1)

    def _enter_rings(self, holder: Holder, times: int) -> None:
        """Count what a holder takes as it decodes; with ``times`` -1, no longer."""
        for size, groups in self._sizes:
            for ring in (self._takes, self._changes):
                ring.enter(holder.base, holder.growth, times * groups, size)

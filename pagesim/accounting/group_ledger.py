"""The ledger of a hybrid cache: every byte under one name, in each KV group and in all.

The groups of a hybrid cache share a pool of blocks of equal bytes, so bytes are what their entries have in
common. What a decoding sequence holds in a group follows from its length by the group's rule; what else
sequences held was noted. Terms: ``docs/metrics.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pagesim.accounting.ledger import GROUP_ENTRIES, GroupLedger, Ledger, LedgerError
from pagesim.accounting.passed import skipped
from pagesim.accounting.sums import Column, Growth, each_of, sum_changes
from pagesim.kvcache import ChunkedLocal, KVGroup, Rule, SlidingWindow, State


class Stay(NamedTuple):
    """A sequence from one iteration to another, both included; in each group it holds what its length says.

    Attributes:
        first, last: iterations.
        base: tokens whose KV is held once an iteration has run, less ``growth`` for each step of growth taken
            by then.
        final: tokens that the sequence will have in the end, the last one counted.
        sequences: how many there are alike.
        growth: tokens that a step adds; 0 where the length rests.
    """

    first: int
    last: int
    base: int
    final: int
    sequences: int
    growth: int


class HeldStay(NamedTuple):
    """A sequence of a length that rests, and what it held meanwhile; two columns more for each group.

    Those are the blocks that it had given back, or never took, before the first that it holds, and the blocks
    that it holds.

    Attributes:
        first, last: iterations.
        length: tokens whose KV is held once they have run.
        computed: those of them that are computed in these iterations.
        final: see `Stay`.
    """

    first: int
    last: int
    length: int
    computed: int
    final: int


class Held(NamedTuple):
    """What memory counts itself, where sequences share blocks, or states are kept: distinct blocks.

    Attributes:
        blocks: of each group, ``[I, G]``.
        cached: free blocks whose content can still be found, ``[I]``.
        passed: slots that names of blocks beyond the first count as out of window, of each group, ``[I, G]``.
        cut: blocks of the memory that are cut into those of the groups, ``[I]``; None where none is cut.
    """

    blocks: Column
    cached: Column
    passed: Column
    cut: Column | None = None


def expand_groups(
    stays: Column,
    held_stays: Column,
    growth: Column,
    *,
    groups: Sequence[KVGroup],
    page_bytes: int,
    group_bytes: Sequence[int],
    capacity: int,
    lag: int = 0,
    held: Held | None = None,
    parked_blocks: Mapping[str, Column] | None = None,
) -> Ledger:
    """Return the ledger of consecutive iterations, in bytes.

    Args:
        stays: rows of `Stay`, ``[S, 6]``; iterations count from the first of these.
        held_stays: rows of `HeldStay`, ``[H, 5 + 2 G]``, likewise.
        growth: how many steps of growth had been taken at each iteration, ``[I]``, never falling.
        groups: the KV groups.
        page_bytes: of a block.
        group_bytes: of each group's blocks, ``[G]``; not ``page_bytes`` where blocks are cut into them.
        capacity: bytes of the cache.
        lag: steps that are in flight when the next one is planned.
        held: see `Held`; None where nothing is shared and no state is kept.
        parked_blocks: by their entry, blocks that only requests hold that do not run, ``[I]`` each; they are
            in no group's part.
    """
    size = len(growth)
    growing = _Growing(stays, Growth(growth), lag)
    resting = _Resting(held_stays, size, len(groups))
    length = growing.length() + resting.total(resting.length)
    names_of: dict[tuple[Rule, int], _Names] = {}
    parts: list[GroupLedger] = []
    logical, physical = np.zeros(size, np.int64), np.zeros(size, np.int64)
    for number, group in enumerate(groups):
        counted = None if held is None else held.blocks[:, number]
        if isinstance(group.rule, State) and counted is not None:
            names = blocks = counted
            slots = None
        else:
            kind = group.rule, group.block_size
            slots = names_of.get(kind)
            if slots is None:
                slots = names_of[kind] = growing.names(group)
            slots = slots.plus(resting.names(group, number))
            names = slots.blocks
            blocks = names if counted is None else counted
        passed = 0 if held is None else held.passed[:, number]
        of_group = _entries(group, group_bytes[number], length, blocks, slots, passed)
        parts.append(GroupLedger(of_group, blocks))
        logical, physical = logical + names, physical + blocks
    nothing = np.zeros(size, np.int64)
    entries = {name: sum((part.entries[name] for part in parts), nothing) for name in GROUP_ENTRIES}
    cached = nothing if held is None else held.cached
    parked = parked_blocks or {}
    for name, blocks in parked.items():
        entries[name] = blocks * page_bytes
        logical, physical = logical + blocks, physical + blocks
    entries["external"] = nothing
    entries["cached"] = cached * page_bytes
    taken = sum((part.blocks * each for part, each in zip(parts, group_bytes, strict=True)), nothing)
    if held is not None and held.cut is not None:
        entries["padding"] += held.cut * page_bytes - taken
        taken = held.cut * page_bytes
        logical, physical = logical - physical + held.cut, held.cut
    entries["free"] = capacity - taken - entries["cached"] - sum((entries[name] for name in parked), nothing)
    for each in (entries, *(part.entries for part in parts)):
        if size and min(int(column.min()) for column in each.values()) < 0:
            raise LedgerError("an entry of the ledger is negative")
    return Ledger(entries, logical, physical, tuple(parts))


class _Names(NamedTuple):
    """What sequences hold in a group, every one by itself, in blocks and tokens, ``[I]`` each.

    Attributes:
        blocks: that they hold.
        skipped: tokens before the first that any token at hand or later attends to.
        released: blocks that they had given back before those that they hold.
        rounding: tokens for which the last block has room, and which it will never hold.
    """

    blocks: Column
    skipped: Column
    released: Column
    rounding: Column

    def plus(self, other: _Names) -> _Names:
        """Return the sum of two."""
        return _Names(*(one + another for one, another in zip(self, other, strict=True)))


def _entries(
    group: KVGroup,
    page_bytes: int,
    length: Column,
    blocks: Column,
    names: _Names | None,
    passed: Column | int,
) -> dict[str, Column]:
    """Return the entries of one group.

    Args:
        group: which.
        page_bytes: of a block.
        length: tokens of all sequences, ``[I]``.
        blocks: distinct blocks that they hold, ``[I]``.
        names: see `_Names`; None of states.
        passed: see `Held`.
    """
    entries = {name: np.zeros(len(blocks), np.int64) for name in GROUP_ENTRIES}
    entries["padding"] = blocks * (page_bytes - group.filled)
    if isinstance(group.rule, State) or names is None:
        entries["state"] = blocks * group.filled
        return entries
    size, slot = group.block_size, group.slot_bytes
    # A block that several sequences name is full.
    again = (names.blocks - blocks) * size
    out_of_window = names.skipped - names.released * size - passed
    used = length - names.skipped - (again - passed)
    entries["used"] = used * slot
    entries["out_of_window"] = out_of_window * slot
    entries["rounding"] = names.rounding * slot
    entries["reserved"] = (blocks * size - used - out_of_window - names.rounding) * slot
    return entries


class _Growing:
    """Sequences whose length grows with each step."""

    def __init__(self, stays: Column, growth: Growth, lag: int) -> None:
        columns = np.ascontiguousarray(stays.T)
        self.first, self.last, self.base, self.final, self.sequences, self.rate = columns
        self.growth = growth
        self.lag = lag
        steps = growth.steps
        self.start = self.base + steps[self.first] * self.rate
        self.end = self.base + steps[self.last] * self.rate

    def length(self) -> Column:
        """Return the tokens of all, ``[I]``; those beyond its last belong to no sequence."""
        beyond = self._total_from(self.final + 1, self.base - self.final)
        return self._present(self.base) + self.growth.steps * self._present(self.rate) - beyond

    def names(self, group: KVGroup) -> _Names:
        """Return what they hold in a group."""
        size = group.block_size
        blocks = self._stairs(1, size, lambda nth: nth + 1)
        last_block = -(-self.final // size)
        rounding = self._from((last_block - 1) * size + 1, last_block * size - self.final)
        skipped = released = np.zeros(len(self.growth.steps), np.int64)
        rule = group.rule
        if isinstance(rule, SlidingWindow):
            # The step's first token is the one after length less rate.
            skips = rule.window + self.rate
            skipped = self._total_from(skips, self.base - skips + 1)
            released = self._stairs(self._processed(rule.window - 1), size, lambda nth: nth)
        elif isinstance(rule, ChunkedLocal):
            chunk = rule.chunk
            skipped = self._stairs(self.rate, chunk, lambda nth: nth * chunk)
            released = self._stairs(self._processed(0), chunk, lambda nth: nth * chunk // size)
        return _Names(blocks - released, skipped, released, rounding)

    def _processed(self, tokens: int) -> Column:
        """Return the lengths at which a step is planned with so many tokens computed before it."""
        length: Column = tokens + self.rate * (1 + self.lag)
        return length

    def _present(self, each: Column) -> Column:
        weights = each * self.sequences
        return sum_changes(len(self.growth.steps), (self.first, weights), (self.last + 1, -weights))

    def _steps_for(self, length: Column, which: Column) -> Column:
        """Return the steps of growth at which stays are so long."""
        steps: Column = -(-(length - self.base[which]) // np.maximum(self.rate[which], 1))
        return steps

    def _from(self, length: Column, amounts: Column) -> Column:
        """Return the sum of amounts, each from the first iteration in which its stay is so long."""
        all_stays = np.arange(len(self.base))
        turn = np.where(
            self.start >= length,
            self.first,
            np.where(
                self.end >= length, self.growth.reaching(self._steps_for(length, all_stays)), self.last + 1
            ),
        )
        amounts = amounts * self.sequences
        return sum_changes(len(self.growth.steps), (turn, amounts), (self.last + 1, -amounts))

    def _total_from(self, length: Column, base: Column) -> Column:
        """Return the sum of base + growth, each from the first iteration in which its stay is so long."""
        return self._from(length, base) + self.growth.steps * self._from(length, self.rate)

    def _stairs(self, foot: Column | int, width: int, height: Callable[[Column], Column]) -> Column:
        """Return the sum of ``height(n)``, where n whole widths fit between a stay's foot and its length."""
        feet = np.broadcast_to(np.asarray(foot, np.int64), self.base.shape)
        start = np.maximum(self.start - feet, 0) // width
        end = np.maximum(self.end - feet, 0) // width
        climber, nth = each_of(end - start)
        nth += start[climber] + 1
        at = self.growth.reaching(self._steps_for(feet[climber] + nth * width, climber))
        return sum_changes(
            len(self.growth.steps),
            (self.first, height(start) * self.sequences),
            (at, (height(nth) - height(nth - 1)) * self.sequences[climber]),
            (self.last + 1, -height(end) * self.sequences),
        )


class _Resting:
    """Sequences of which it was noted what they held."""

    def __init__(self, stays: Column, size: int, groups: int) -> None:
        columns = np.ascontiguousarray(stays.T)
        self.first, self.last, self.length, self.computed, self.final = columns[: len(HeldStay._fields)]
        self.groups = columns[len(HeldStay._fields) :].reshape(groups, 2, -1)
        self.size = size

    def total(self, each: Column) -> Column:
        """Return the sum of something over the sequences, ``[I]``."""
        return sum_changes(self.size, (self.first, each), (self.last + 1, -each))

    def names(self, group: KVGroup, number: int) -> _Names:
        """Return what they hold in a group."""
        released, blocks = self.groups[number]
        end = (released + blocks) * group.block_size
        before = skipped(group.rule, self.length - self.computed)
        each = _Names(blocks, before, released, np.maximum(end - self.final, 0))
        return _Names(*map(self.total, each))

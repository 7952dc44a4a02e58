"""The ledger of a hybrid cache: every byte under one name, in each KV group and in all.

The groups of a hybrid cache share a pool of blocks of equal bytes, so bytes are what their entries have in
common. What a decoding sequence holds in a group follows from its length by the group's rule; what else
sequences held was noted. Terms: ``docs/metrics.md``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pagesim.accounting.ledger import GROUP_ENTRIES, GroupLedger, Ledger, LedgerError
from pagesim.accounting.passed import skipped
from pagesim.accounting.sums import Column, Growth, sum_changes
from pagesim.kvcache import ChunkedLocal, KVGroup, SlidingWindow, State


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
        blocks: of each group, ``[I, G]``; -1, or None in all, where no sequence shares any.
        cached: free blocks whose content can still be found, ``[I]``.
        passed: slots that names of blocks beyond the first count as out of window, of each group, ``[I, G]``;
            None where there are none.
        cut: blocks of the memory that are cut into those of the groups, ``[I]``; None where none is cut.
    """

    blocks: Column | None
    cached: Column
    passed: Column | None
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
    prompts: Column | None = None,
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
        prompts: iterations in which stays begin with all of a prompt, of which so nothing is given back yet,
            and its tokens but for those of a step, ``[P, 2]``; None for no such stays.
        held: see `Held`; None where nothing is shared and no state is kept.
        parked_blocks: by their entry, blocks that only requests hold that do not run, ``[I]`` each; they are
            in no group's part.
    """
    size = len(growth)
    nothing = np.zeros(size, np.int64)
    growing = _Growing(stays, prompts, Growth(growth), lag)
    resting = _Resting(held_stays, size, len(groups))
    length = growing.length()
    if len(held_stays):
        length = length + resting.total(resting.length)
    parts: list[GroupLedger] = []
    times: dict[int, int] = {}  # of each group whose part no group before it has, how many have it
    names_of: dict[int, Column] = {}
    for number, group in enumerate(groups):
        bytes_each = group_bytes[number]
        for other in times:
            if group_bytes[other] == bytes_each and _alike(groups, other, number, resting, held):
                times[other] += 1
                parts.append(parts[other])
                break
        else:
            counted = None if held is None or held.blocks is None else held.blocks[:, number]
            if isinstance(group.rule, State) and counted is not None:
                names = blocks = counted
                slots = None
            else:
                slots = growing.names(group)
                if len(held_stays):
                    slots = slots.plus(resting.names(group, number))
                names = slots.blocks
                blocks = names if counted is None else np.where(counted < 0, names, counted)
            passed = nothing if held is None or held.passed is None else held.passed[:, number]
            of_group = _entries(group, bytes_each, length, blocks, slots, passed, nothing)
            parts.append(GroupLedger(of_group, blocks))
            times[number], names_of[number] = 1, names
    distinct = [(parts[number], each) for number, each in times.items()]
    physical = _total([(part.blocks, each) for part, each in distinct], nothing)
    logical = physical
    if any(names_of[number] is not parts[number].blocks for number in times):
        logical = _total([(names_of[number], each) for number, each in times.items()], nothing)
    entries = {
        name: _total([(part.entries[name], each) for part, each in distinct], nothing)
        for name in GROUP_ENTRIES
    }
    cached = nothing if held is None else held.cached
    parked = parked_blocks or {}
    for name, blocks in parked.items():
        entries[name] = blocks * page_bytes
        logical, physical = logical + blocks, physical + blocks
    entries["external"] = nothing
    entries["cached"] = cached * page_bytes
    taken = _total(
        [(parts[number].blocks, each * group_bytes[number]) for number, each in times.items()], nothing
    )
    if held is not None and held.cut is not None:
        entries["padding"] = entries["padding"] + held.cut * page_bytes - taken
        taken = held.cut * page_bytes
        logical, physical = logical - physical + held.cut, held.cut
    free = capacity - taken - entries["cached"]
    for name in parked:
        free -= entries[name]
    entries["free"] = free
    for each_entries in (entries, *(part.entries for part, _ in distinct)):
        if any(column.min(initial=0) < 0 for column in each_entries.values() if column is not nothing):
            raise LedgerError("an entry of the ledger is negative")
    return Ledger(entries, logical, physical, tuple(parts))


def _alike(groups: Sequence[KVGroup], one: int, other: int, resting: _Resting, held: Held | None) -> bool:
    """Say whether all that the parts of two groups of equal blocks follow from is the same."""
    first, second = groups[one], groups[other]
    if (first.rule, first.block_size, first.filled, first.slot_bytes) != (
        second.rule,
        second.block_size,
        second.filled,
        second.slot_bytes,
    ):
        return False
    counted = [] if held is None else [each for each in (held.blocks, held.passed) if each is not None]
    return np.array_equal(resting.groups[one], resting.groups[other]) and all(
        np.array_equal(columns[:, one], columns[:, other]) for columns in counted
    )


def _total(columns: Iterable[tuple[Column, int]], nothing: Column) -> Column:
    """Return the sum of columns, each so many times; ``nothing`` itself is not added."""
    total = nothing
    for column, times in columns:
        if column is not nothing:
            each = column if times == 1 else column * times
            total = each if total is nothing else total + each
    return total


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
    passed: Column,
    nothing: Column,
) -> dict[str, Column]:
    """Return the entries of one group.

    Args:
        group: which.
        page_bytes: of a block.
        length: tokens of all sequences, ``[I]``.
        blocks: distinct blocks that they hold, ``[I]``.
        names: see `_Names`; None of states.
        passed: see `Held`.
        nothing: stands for what is 0 throughout, ``[I]``.
    """
    entries = dict.fromkeys(GROUP_ENTRIES, nothing)
    if page_bytes > group.filled:
        entries["padding"] = blocks * (page_bytes - group.filled)
    if isinstance(group.rule, State) or names is None:
        entries["state"] = blocks * group.filled
        return entries
    size, slot = group.block_size, group.slot_bytes
    used, room = length, blocks * size
    if names.blocks is not blocks:
        # A block that several sequences name is full.
        used = used - (names.blocks - blocks) * size
    if isinstance(group.rule, SlidingWindow | ChunkedLocal):
        out_of_window = names.skipped - names.released * size
        used = used - names.skipped
        if passed is not nothing:
            out_of_window -= passed
            used += passed
        entries["out_of_window"] = out_of_window * slot
        room -= out_of_window
    entries["used"] = used * slot
    entries["rounding"] = names.rounding * slot
    entries["reserved"] = (room - used - names.rounding) * slot
    return entries


class _Growing:
    """Sequences whose length grows with each step."""

    def __init__(self, stays: Column, prompts: Column | None, growth: Growth, lag: int) -> None:
        columns = np.ascontiguousarray(stays.T)
        self.first, self.last, self.base, self.final, self.sequences, self.rate = columns
        self.prompts = prompts
        self.growth = growth
        self.lag = lag
        steps = growth.steps
        self.start = self.base + steps[self.first] * self.rate
        self.end = self.base + steps[self.last] * self.rate
        self._a_token_each = bool((self.rate <= 1).all())
        self._nothing = np.zeros(len(steps), np.int64)
        self._of_size: dict[int, tuple[Column, Column]] = {}  # by block size: blocks, and `_Names.rounding`

    def length(self) -> Column:
        """Return the tokens of all, ``[I]``; those beyond its last belong to no sequence."""
        length = self._present(self.base) + self.growth.steps * self._present(self.rate)
        if (self.end > self.final).any():
            length -= self._total_from(self.final + 1, self.base - self.final)
        return length

    def names(self, group: KVGroup) -> _Names:
        """Return what they hold in a group."""
        size, rule = group.block_size, group.rule
        if size not in self._of_size:
            last_block = -(-self.final // size)
            rounding = self._from((last_block - 1) * size + 1, last_block * size - self.final)
            self._of_size[size] = self._stairs(1, size, ground=1), rounding
        blocks, rounding = self._of_size[size]
        if isinstance(rule, SlidingWindow):
            # The step's first token is the one after length less rate.
            skips = rule.window + self.rate
            tokens = self._total_from(skips, self.base - skips + 1)
            released = self._stairs(self._processed(rule.window - 1), size)
        elif isinstance(rule, ChunkedLocal):
            tokens = self._stairs(self.rate, rule.chunk, rule.chunk)
            released = self._stairs(self._processed(0), rule.chunk, rule.chunk, size)
        else:
            return _Names(blocks, self._nothing, self._nothing, rounding)
        if self.prompts is not None:
            at, processed = self.prompts.T
            early = skipped(rule, processed)
            np.subtract.at(tokens, at, early)
            np.subtract.at(released, at, early // size)
        return _Names(blocks - released, tokens, released, rounding)

    def _processed(self, tokens: int) -> Column:
        """Return the lengths at which a step is planned with so many tokens computed before it."""
        length: Column = tokens + self.rate * (1 + self.lag)
        return length

    def _present(self, each: Column) -> Column:
        weights = each * self.sequences
        return sum_changes(len(self.growth.steps), (self.first, weights), (self.last + 1, -weights))

    def _steps_for(self, tokens: Column, rate: Column) -> Column:
        """Return after how many steps of growth of some rates there are so many tokens more."""
        return tokens if self._a_token_each else -(-tokens // np.maximum(rate, 1))

    def _from(self, length: Column, amounts: Column) -> Column:
        """Return the sum of amounts, each from the first iteration in which its stay is so long."""
        reached = self.growth.reaching(self._steps_for(length - self.base, self.rate))
        turn = np.where(
            self.start >= length, self.first, np.where(self.end >= length, reached, self.last + 1)
        )
        amounts = amounts * self.sequences
        return sum_changes(len(self.growth.steps), (turn, amounts), (self.last + 1, -amounts))

    def _total_from(self, length: Column, base: Column) -> Column:
        """Return the sum of base + growth, each from the first iteration in which its stay is so long."""
        return self._from(length, base) + self.growth.steps * self._from(length, self.rate)

    def _stairs(self, foot: Column | int, width: int, rise: int = 1, per: int = 1, ground: int = 0) -> Column:
        """Return the sum of ``ground + n · rise // per``, n whole widths from a foot to a stay's length."""
        start = np.maximum(self.start - foot, 0) // width
        end = np.maximum(self.end - foot, 0) // width
        counts = end - start
        before = np.cumsum(counts) - counts
        each = np.arange(int(counts.sum()))
        # The n-th width is whole at a length of foot + n · width.
        length = np.repeat(foot + (start + 1 - before) * width - self.base, counts) + each * width
        at = self.growth.reaching(self._steps_for(length, np.repeat(self.rate, counts)))
        climbed = np.repeat(self.sequences * (rise // per), counts)
        if rise % per:
            nth = np.repeat(start + 1 - before, counts) + each
            climbed = (nth * rise // per - (nth - 1) * rise // per) * np.repeat(self.sequences, counts)
        return sum_changes(
            len(self.growth.steps),
            (self.first, (ground + start * rise // per) * self.sequences),
            (at, climbed),
            (self.last + 1, -(ground + end * rise // per) * self.sequences),
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

"""The ledger of a hybrid cache: assigns every byte to one entry, per KV cache group and in total.

The groups of a hybrid cache share a pool of blocks of equal size in bytes, so their entries are in bytes.
What a decoding sequence holds in a group follows from its length by the group's rule; anything else that
sequences held was recorded explicitly. Terms: ``docs/reference/metrics.md``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pagesim.accounting.ledger import GROUP_ENTRIES, GroupLedger, Ledger, LedgerError
from pagesim.accounting.sums import Column, Stays, sum_changes
from pagesim.kvcache import ChunkedLocal, KVGroup, Rule, SlidingWindow, State


class HeldStay(NamedTuple):
    """A sequence of constant length and what it held; a row has two more columns for each group.

    The first counts the blocks before its first held block, either released or never allocated. The second
    counts the blocks that it holds.

    Attributes:
        first, last: first and last iteration, inclusive.
        length: tokens whose KV is held after these iterations.
        computed: those of them that these iterations compute.
        final: final length of the sequence in tokens, including the last one.
    """

    first: int
    last: int
    length: int
    computed: int
    final: int


class Held(NamedTuple):
    """Distinct blocks as counted by the block manager, where sequences share blocks or states are kept.

    Attributes:
        blocks: blocks of each group, ``[I, G]``.
        cached: free blocks whose content can still be hit, ``[I]``.
        shared: slots that references beyond a block's first count as out of window, by group, ``[I, G]``;
            None if there are none.
        cut: blocks of the pool that are split into blocks of the groups, ``[I]``; None if none is split.
    """

    blocks: Column
    cached: Column
    shared: Column | None
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
    steps_in_flight: int = 0,
    held: Held | None = None,
    held_without_running: Mapping[str, Column] | None = None,
) -> Ledger:
    """Return the ledger of consecutive iterations, in bytes.

    Args:
        stays: rows of `Stay`, ``[S, 6]``; iterations are relative to the first one.
        held_stays: rows of `HeldStay`, ``[H, 5 + 2 G]``; iterations are relative to the first one.
        growth: steps of growth completed at each iteration, ``[I]``, non-decreasing.
        groups: KV cache groups.
        page_bytes: bytes of a block.
        group_bytes: bytes of each group's blocks, ``[G]``; not ``page_bytes`` where blocks are split.
        capacity: bytes of the cache.
        steps_in_flight: steps in flight while the next one is planned.
        held: counts of the block manager; None if nothing is shared and no state is kept.
        held_without_running: blocks held only by requests that are not running, by entry, ``[I]`` each; they
            belong to no group's part.
    """
    nothing = np.zeros(len(growth), np.int64)
    growing = Stays(growth, stays)
    resting = _Resting(held_stays, len(growth), len(groups))
    length = growing.own_length() + resting.total(resting.length)
    names_of_growing: dict[tuple[Rule, int], _Names] = {}  # by rule and block size
    parts: list[GroupLedger] = []
    logical = taken = nothing
    for number, group in enumerate(groups):
        like = group.rule, group.block_size
        if like not in names_of_growing:
            names_of_growing[like] = _names_of_growing(growing, group, steps_in_flight)
        names = names_of_growing[like].plus(resting.names(group, number))
        blocks = names.blocks if held is None else held.blocks[:, number]
        shared = None if held is None or held.shared is None else held.shared[:, number]
        entries = _entries(group, group_bytes[number], length, blocks, names, shared)
        parts.append(GroupLedger({name: entries.get(name, nothing) for name in GROUP_ENTRIES}, blocks))
        logical = logical + (blocks if isinstance(group.rule, State) else names.blocks)
        taken = taken + blocks * group_bytes[number]
    physical = sum([part.blocks for part in parts], nothing)
    entries = {name: sum([part.entries[name] for part in parts], nothing) for name in GROUP_ENTRIES}
    if held is not None and held.cut is not None:
        entries["padding"] = entries["padding"] + held.cut * page_bytes - taken
        taken = held.cut * page_bytes
        logical, physical = logical - physical + held.cut, held.cut
    for name, blocks in (held_without_running or {}).items():
        entries[name] = blocks * page_bytes
        logical, physical, taken = logical + blocks, physical + blocks, taken + entries[name]
    entries["external"] = nothing
    entries["cached"] = nothing if held is None else held.cached * page_bytes
    entries["free"] = capacity - taken - entries["cached"]
    for each in (entries, *(part.entries for part in parts)):
        if any(column.min(initial=0) < 0 for column in each.values()):
            raise LedgerError("an entry of the ledger is negative")
    return Ledger(entries, logical, physical, tuple(parts))


class _Names(NamedTuple):
    """What sequences hold in a group without sharing, in blocks and tokens, ``[I]`` each.

    Attributes:
        blocks: blocks held.
        skipped: leading tokens to which neither the current step nor any later one attends.
        released: leading blocks already released.
        rounding: slots of last blocks that no token will ever fill.
    """

    blocks: Column
    skipped: Column
    released: Column
    rounding: Column

    def plus(self, other: _Names) -> _Names:
        """Return the sum of both."""
        return _Names(*(one + another for one, another in zip(self, other, strict=True)))


def _entries(
    group: KVGroup, page_bytes: int, length: Column, blocks: Column, names: _Names, shared: Column | None
) -> dict[str, Column]:
    """Return the entries of one group that may differ from 0.

    Args:
        group: KV cache group.
        page_bytes: bytes of a block.
        length: tokens of all sequences, ``[I]``.
        blocks: distinct blocks that the sequences hold, ``[I]``.
        names: what the sequences hold without sharing.
        shared: slots that references beyond a block's first count as out of window, ``[I]``; None for none.
    """
    entries = {"padding": blocks * (page_bytes - group.filled)} if page_bytes > group.filled else {}
    if isinstance(group.rule, State):
        return {**entries, "state": blocks * group.filled}
    size, slot = group.block_size, group.slot_bytes
    # A block referenced by several sequences is full.
    used = length - (names.blocks - blocks) * size - names.skipped
    out_of_window = names.skipped - names.released * size
    if shared is not None:
        used = used + shared
        out_of_window = out_of_window - shared
    return {
        **entries,
        "used": used * slot,
        "reserved": (blocks * size - out_of_window - used - names.rounding) * slot,
        "rounding": names.rounding * slot,
        "out_of_window": out_of_window * slot,
    }


def _names_of_growing(stays: Stays, group: KVGroup, steps_in_flight: int) -> _Names:
    """Return what sequences that grow with each step hold in a group."""
    size, rule, rate = group.block_size, group.rule, stays.rate
    blocks, rounding = stays.blocks(size), stays.rounding(size)
    # Tokens added since the last step that has finished when the next one is planned.
    planned = rate * (1 + steps_in_flight)
    if isinstance(rule, SlidingWindow):
        # The step's first token follows the first length − rate tokens.
        skips = rule.window + rate
        tokens = stays.total_from(skips, stays.base - skips + 1)
        released = stays.stairs(planned + rule.window - 1, size)
    elif isinstance(rule, ChunkedLocal):
        tokens = stays.stairs(rate, rule.chunk, rule.chunk)
        released = stays.stairs(planned, rule.chunk, rule.chunk, size)
    else:
        nothing = np.zeros_like(blocks)
        return _Names(blocks, nothing, nothing, rounding)
    return _Names(blocks - released, tokens, released, rounding)


class _Resting:
    """Sequences of constant length whose holdings were recorded."""

    def __init__(self, stays: Column, size: int, groups: int) -> None:
        columns = np.ascontiguousarray(stays.T)
        self.first, self.last, self.length, self.computed, self.final = columns[: len(HeldStay._fields)]
        self.groups = columns[len(HeldStay._fields) :].reshape(groups, 2, -1)
        self.size = size

    def total(self, each: Column) -> Column:
        """Return the sum of a per-sequence amount over the sequences present, ``[I]``."""
        return sum_changes(self.size, (self.first, each), (self.last + 1, -each))

    def names(self, group: KVGroup, number: int) -> _Names:
        """Return what the sequences hold in a group."""
        released, blocks = self.groups[number]
        end = (released + blocks) * group.block_size
        computed = (self.length - self.computed).tolist()
        before = np.array([group.rule.skipped(tokens) for tokens in computed], np.int64)
        # A prefix hit provides a window's blocks, but not the tokens that MTP modules read behind it.
        before = np.maximum(before, released * group.block_size)
        each = _Names(blocks, before, released, np.maximum(end - self.final, 0))
        return _Names(*map(self.total, each))

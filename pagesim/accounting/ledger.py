"""The ledger: every token slot of the KV cache under one name, at every iteration, in exact integers.

An engine that fast-forwards does not look at memory in between. It leaves *intervals* behind: from which
iteration to which a sequence held memory, how long it was then, and by what rule its memory follows from its
length. From those the ledger of every single iteration follows, so a fast-forward loses nothing. Terms:
``docs/metrics.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from pagesim.kvcache import KVGroup, SlidingWindow

Column = npt.NDArray[np.int64]
Slots = TypeVar("Slots", int, Column)

ENTRIES = ("used", "reserved", "over_reserved", "rounding", "external", "cached", "free")
"""The strict view's entries; they sum to the capacity."""

ON_DEMAND = -1
"""In ``Interval.held_blocks``: memory is taken block by block as the sequence grows."""


class Interval(NamedTuple):
    """A sequence's memory in one KV group from one iteration to another, both included.

    An interval knows nothing of sharing: what sequences share is taken off for all of them together.

    Attributes:
        first, last: iterations.
        base: tokens whose KV is held once an iteration has run, less ``growth`` for each step of growth taken
            by then.
        final: tokens that the sequence will have in the end, the last one counted.
        held_blocks: blocks held throughout, or ``ON_DEMAND`` for as many as the tokens need.
        reserved: tokens that were reserved; 0 on demand, and of blocks taken for drafts as well.
        sequences: how many there are alike, each with blocks of its own as far as the interval knows.
        growth: tokens that a step adds; 0 where the length rests.
        group: index of the KV group.
    """

    first: int
    last: int
    base: int
    final: int
    held_blocks: int
    reserved: int
    sequences: int
    growth: int
    group: int


class Sharing(NamedTuple):
    """What the intervals count too often, at each iteration: names of a block beyond its first, ``[I]`` each.

    Attributes:
        blocks: such names.
        slack: token slots of such blocks that no token fills yet: of last blocks that are still shared.
        rounding: those of them that no token ever will.
    """

    blocks: Column
    slack: Column
    rounding: Column


@dataclass(frozen=True, slots=True)
class Ledger:
    """Columns over iterations, ``[I]``, in token slots unless said otherwise.

    Attributes:
        entries: the strict view, by the names in ``ENTRIES``.
        logical_blocks: blocks that the running sequences would hold for their tokens if they shared nothing.
        physical_blocks: blocks held.
    """

    entries: dict[str, Column]
    logical_blocks: Column
    physical_blocks: Column


class LedgerError(AssertionError):
    """The intervals and the memory disagree: a fault in pagesim, never in its input."""


def window_of(group: KVGroup) -> int:
    """Return the tokens of a group's sliding window; 0 where nothing is released before the end."""
    return group.rule.window if isinstance(group.rule, SlidingWindow) else 0


def expand(
    intervals: Column,
    growth: Column,
    *,
    groups: Sequence[tuple[int, int]],
    num_blocks: int,
    external_blocks: Column | None = None,
    sharing: Sharing | None = None,
    cached_blocks: Callable[[Column], Column] | None = None,
) -> Ledger:
    """Return the ledger of consecutive iterations.

    Args:
        intervals: rows of `Interval`, ``[S, 9]``; iterations count from the first of these.
        growth: how many steps of growth had been taken at each iteration, ``[I]``, never falling.
        groups: of each KV group the tokens a block and its window (0 for none).
        num_blocks: blocks of the cache.
        external_blocks: free blocks that are unusable for the head of the queue, ``[I]``; None for none.
        sharing: see `Sharing`; of the first group, where anything is shared.
        cached_blocks: tells free blocks whose content can still be found from the blocks held, ``[I]`` both;
            None where no content is found.
    """
    parts = [
        _of_group(
            intervals if len(groups) == 1 else intervals[intervals[:, 8] == number],
            growth,
            block_size,
            window,
            sharing if number == 0 else None,
        )
        for number, (block_size, window) in enumerate(groups)
    ]
    entries, logical, physical = parts[0]
    for others, more, held in parts[1:]:
        entries = {name: column + others[name] for name, column in entries.items()}
        logical, physical = logical + more, physical + held
    block_size = groups[0][0]
    entries["free"] = (num_blocks - physical) * block_size
    for name, blocks in (
        ("external", external_blocks),
        ("cached", None if cached_blocks is None else cached_blocks(physical)),
    ):
        if blocks is None:
            entries[name] = np.zeros(len(growth), np.int64)
        else:
            entries[name] = blocks * block_size
            entries["free"] -= entries[name]
    if len(growth) and min(int(column.min()) for column in entries.values()) < 0:
        raise LedgerError("an entry of the ledger is negative")
    return Ledger({name: entries[name] for name in ENTRIES}, logical, physical)


def _of_group(
    intervals: Column, growth: Column, block_size: int, window: int, sharing: Sharing | None
) -> tuple[dict[str, Column], Column, Column]:
    """Return the entries of one KV group, its logical and its physical blocks, ``[I]`` each."""
    size = len(growth)
    first, last, base, final, held, reserved, sequences, rate, _ = np.ascontiguousarray(intervals.T)
    growing = rate > 0
    unit = not len(rate) or (int(rate.min()) == 1 == int(rate.max()))
    on_demand = held == ON_DEMAND
    reserves = not on_demand.all()
    length = base + growth[first] * rate
    end_length = base + growth[last] * rate

    def steps_for(missing: Column, each: npt.NDArray[Any]) -> Column:
        """Return the steps of growth at which intervals hold so many tokens more than their base."""
        return missing if unit else -(-missing // np.maximum(rate[each], 1))

    a_step_each = bool(size and (np.diff(growth) == 1).all())

    def reaching(steps: Column) -> Column:
        """Return the first iterations at which growth is at least so far; it is in the end."""
        found: Column = steps - growth[0] if a_step_each else np.searchsorted(growth, steps)
        return found

    # Where a sequence is in an iteration, its length is base + growth there: so sums over the running
    # sequences are differences at the ends of stays, summed up, and no sequence is looked at twice.
    def present(each: Column) -> Column:
        weights = each * sequences
        return _sum_changes(size, (first, weights), (last + 1, -weights))

    used = present(base) + growth * present(rate)

    # A static batch goes on generating for a row that has all its own tokens: those belong to no request.
    excess = np.maximum(end_length - final, 0)
    over = np.flatnonzero(excess)
    if len(over):
        turn = np.maximum(reaching(steps_for(final[over] + 1 - base[over], over)), first[over])
        rows = sequences[over]
        surplus = (final[over] - base[over]) * rows
        rows = rows * rate[over]
        used -= _sum_changes(size, (turn, -surplus), (last[over] + 1, surplus))
        used -= growth * _sum_changes(size, (turn, rows), (last[over] + 1, -rows))

    # What is held for drafts, beyond the tokens, is needed as long as it is held.
    drafts = ~on_demand & (reserved == 0)
    needed = np.where(drafts, held, -(-length // block_size))
    end_needed = np.where(drafts, held, -(-end_length // block_size))
    # Iterations at which a growing sequence opens a new block: at lengths needed·size + 1 and every size on.
    openings = np.where(growing, end_needed - needed, 0)
    opener, nth = _each(openings)
    missing = np.repeat(needed * block_size + 1 - base, openings) + nth * block_size
    opened_at = reaching(steps_for(missing, opener))

    logical = _sum_changes(
        size,
        (first, sequences * needed),
        (opened_at, sequences[opener]),
        (last + 1, -sequences * end_needed),
    )
    # Reservations hold what they hold, whatever their tokens need, and share nothing.
    fixed = np.where(on_demand, 0, held)
    physical = present(np.where(on_demand, 0, held)) if reserves else logical
    if reserves and on_demand.any():
        whole = np.where(on_demand, sequences, 0)
        physical = physical + _sum_changes(
            size,
            (first, whole * needed),
            (opened_at, whole[opener]),
            (last + 1, -whole * end_needed),
        )
    if window:
        released = _released(intervals, growth, block_size, window, on_demand, steps_for, reaching)
        physical = physical - released
        used -= released * block_size
    if sharing is not None:
        physical = physical - sharing.blocks
        used -= sharing.blocks * block_size - sharing.slack

    # On demand, slots are lost for good only in the sequence's last block, from when it is opened.
    last_block = -(-final // block_size)
    lost = np.where(on_demand, last_block * block_size - final, 0) * sequences
    from_start = on_demand & (needed == last_block)
    opens_it = on_demand & ~from_start & (end_needed == last_block)
    opening = steps_for(((last_block - 1) * block_size + 1 - base)[opens_it], opens_it)
    rounding = _sum_changes(
        size,
        (first[from_start], lost[from_start]),
        (last[from_start] + 1, -lost[from_start]),
        (reaching(opening), lost[opens_it]),
        (last[opens_it] + 1, -lost[opens_it]),
    )
    if sharing is not None:
        rounding -= sharing.rounding
    over_reserved = np.zeros(size, np.int64)
    if reserves:
        fixed *= block_size
        guess = np.clip(reserved, final, np.maximum(fixed, final))
        over_reserved = present(np.where(on_demand, 0, guess - final))
        rounding += present(np.where(on_demand, 0, np.maximum(fixed - guess, 0)))

    entries = {
        "used": used,
        "reserved": physical * block_size - used - over_reserved - rounding,
        "over_reserved": over_reserved,
        "rounding": rounding,
    }
    return entries, logical, physical


def _released(
    intervals: Column,
    growth: Column,
    block_size: int,
    window: int,
    on_demand: npt.NDArray[np.bool_],
    steps_for: Callable[[Column, Column], Column],
    reaching: Callable[[Column], Column],
) -> Column:
    """Return the blocks that a sliding window has released, ``[I]``.

    In an iteration a window has released what no token after those that had run before it attends to.
    """
    first, last, base, _, _, _, sequences, rate, _ = intervals.T
    weights = np.where(on_demand, sequences, 0)

    def by(length: Column) -> Column:
        blocks: Column = np.maximum(0, length - rate - window + 1) // block_size
        return blocks

    start, end = by(base + growth[first] * rate), by(base + growth[last] * rate)
    releaser, nth = _each(np.where(rate > 0, end - start, 0))
    tokens = (start[releaser] + nth + 1) * block_size + window - 1 + rate[releaser]
    return _sum_changes(
        len(growth),
        (first, weights * start),
        (reaching(steps_for(tokens - base[releaser], releaser)), weights[releaser]),
        (last + 1, -weights * np.where(rate > 0, end, start)),
    )


def _each(counts: Column) -> tuple[Column, Column]:
    """Return for ``counts[i]`` events of each i the i, and which of its events each is, from 0."""
    which = np.repeat(np.arange(len(counts)), counts)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)


def paper_view(entries: Mapping[str, Slots], capacity: int, *, reserves: bool) -> dict[str, Slots]:
    """Return the paper's four categories (Fig. 2) from the strict view, in token slots.

    Args:
        entries: the strict view of some iterations, or its sums over them.
        capacity: token slots of the cache; for sums, as often as entries were added up.
        reserves: whether memory is reserved ahead; where it is taken on demand the paper shows no
            reservation and no internal fragmentation.
    """
    nothing = 0 * entries["used"]
    reservation = entries["reserved"] if reserves else nothing
    internal = entries["over_reserved"] if reserves else nothing
    return {
        "token_states": entries["used"],
        "reservation": reservation,
        "internal": internal,
        "external": capacity - entries["used"] - reservation - internal,
    }


def _sum_changes(size: int, *changes: tuple[Column, Column]) -> Column:
    """Return the running sum, ``[size]``, of amounts that change at given indices (some one past the end)."""
    sums = np.zeros(size + 1, np.int64)
    for where, amounts in changes:
        np.add.at(sums, where, amounts)
    return np.cumsum(sums[:size])

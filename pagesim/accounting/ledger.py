"""The ledger: every token slot of the KV cache under one name, at every iteration, in exact integers.

This is the ledger of a cache whose blocks are the same for all layers; ``group_ledger.py`` has the other.

An engine that fast-forwards does not look at memory in between. It leaves *intervals* behind: from which
iteration to which a sequence held memory, how long it was then, and by what rule its memory follows from its
length. From those the ledger of every single iteration follows, so a fast-forward loses nothing. Terms:
``docs/metrics.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from pagesim.accounting.sums import Column, Growth, each_of, sum_changes
from pagesim.kvcache import BlockManager

__all__ = [
    "ENTRIES",
    "GROUP_ENTRIES",
    "HYBRID_ENTRIES",
    "ON_DEMAND",
    "PARKED_ENTRIES",
    "Column",
    "GroupLedger",
    "Interval",
    "Ledger",
    "LedgerError",
    "LedgerShape",
    "Sharing",
    "expand",
    "paper_view",
]

Slots = TypeVar("Slots", int, Column)

ENTRIES = ("used", "reserved", "unused_reservation", "rounding", "external", "cached", "free")
"""The strict view's entries; they sum to the capacity."""

GROUP_ENTRIES = ("used", "state", "reserved", "unused_reservation", "rounding", "padding", "out_of_window")
"""Those of the blocks that a KV group of a hybrid cache holds."""

HYBRID_ENTRIES = (*GROUP_ENTRIES, "external", "cached", "free")
"""The strict view's entries of a hybrid cache, in bytes."""

PARKED_ENTRIES = ("held_for_transfer", "landing", "loading", "fenced")
"""Entries of blocks that only requests hold that do not run: see `Scheduler.parks`."""

ON_DEMAND = -1
"""In ``Interval.held_blocks``: memory is taken block by block as the sequence grows."""


class Interval(NamedTuple):
    """A sequence's memory from one iteration to another, both included.

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
    """

    first: int
    last: int
    base: int
    final: int
    held_blocks: int
    reserved: int
    sequences: int
    growth: int


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
class LedgerShape:
    """What the ledger of a memory has.

    Attributes:
        entries: of the strict view, in their order.
        capacity: what they sum to: token slots, of a hybrid cache bytes on each GPU.
        num_blocks: of the memory.
        groups: names of the KV groups of a hybrid cache, by number and rule.
    """

    entries: tuple[str, ...]
    capacity: int
    num_blocks: int
    groups: tuple[str, ...] = ()

    @classmethod
    def of(cls, memory: BlockManager, parks: tuple[str, ...] = ()) -> LedgerShape:
        """Return that of a memory, in which requests that do not run hold what these entries name."""
        if not memory.is_hybrid:
            entries = (*ENTRIES[:4], *parks, *ENTRIES[4:])
            return cls(entries, memory.num_blocks * memory.block_size, memory.num_blocks)
        groups = tuple(f"{number}:{group.kind}" for number, group in enumerate(memory.groups))
        entries = (*GROUP_ENTRIES, *parks, *HYBRID_ENTRIES[len(GROUP_ENTRIES) :])
        return cls(entries, memory.capacity_bytes, memory.num_blocks, groups)


@dataclass(frozen=True, slots=True)
class GroupLedger:
    """The part of a KV group in the ledger of a hybrid cache, columns over iterations, ``[I]``.

    Attributes:
        entries: by the names in ``GROUP_ENTRIES``, in bytes.
        blocks: held.
    """

    entries: dict[str, Column]
    blocks: Column


@dataclass(frozen=True, slots=True)
class Ledger:
    """Columns over iterations, ``[I]``, in token slots unless said otherwise; of a hybrid cache in bytes.

    Attributes:
        entries: the strict view, by the names in ``ENTRIES`` or ``HYBRID_ENTRIES``.
        logical_blocks: blocks that the running sequences would hold for their tokens if they shared nothing,
            and those that only others hold.
        physical_blocks: blocks held, those of requests that do not run included.
        groups: of a hybrid cache.
    """

    entries: dict[str, Column]
    logical_blocks: Column
    physical_blocks: Column
    groups: tuple[GroupLedger, ...] = ()


class LedgerError(AssertionError):
    """The intervals and the memory disagree: a fault in pagesim, never in its input."""


def expand(
    intervals: Column,
    growth: Column,
    *,
    block_size: int,
    num_blocks: int,
    external_blocks: Column | None = None,
    sharing: Sharing | None = None,
    cached_blocks: Callable[[Column], Column] | None = None,
    parked_blocks: Mapping[str, Column] | None = None,
) -> Ledger:
    """Return the ledger of consecutive iterations.

    Args:
        intervals: rows of `Interval`, ``[S, 8]``; iterations count from the first of these.
        growth: how many steps of growth had been taken at each iteration, ``[I]``, never falling.
        block_size: tokens a block.
        num_blocks: blocks of the cache.
        external_blocks: free blocks that are unusable for the head of the queue, ``[I]``; None for none.
        sharing: see `Sharing`, where anything is shared.
        cached_blocks: tells free blocks whose content can still be found from the blocks held, ``[I]`` both;
            None where no content is found.
        parked_blocks: by their entry, blocks that only requests hold that do not run, ``[I]`` each.
    """
    entries, logical, physical = _held(intervals, growth, block_size, sharing)
    parked = parked_blocks or {}
    for name, held in parked.items():
        entries[name] = held * block_size
        logical, physical = logical + held, physical + held
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
    names = (*ENTRIES[:4], *parked, *ENTRIES[4:])
    return Ledger({name: entries[name] for name in names}, logical, physical)


def _held(
    intervals: Column, growth: Column, block_size: int, sharing: Sharing | None
) -> tuple[dict[str, Column], Column, Column]:
    """Return the entries of what is held, logical and physical blocks, ``[I]`` each."""
    size = len(growth)
    first, last, base, final, held, reserved, sequences, rate = np.ascontiguousarray(intervals.T)
    growing = rate > 0
    unit = not len(rate) or (int(rate.min()) == 1 == int(rate.max()))
    on_demand = held == ON_DEMAND
    reserves = not on_demand.all()
    length = base + growth[first] * rate
    end_length = base + growth[last] * rate

    def steps_for(missing: Column, each: npt.NDArray[Any]) -> Column:
        """Return the steps of growth at which intervals hold so many tokens more than their base."""
        return missing if unit else -(-missing // np.maximum(rate[each], 1))

    reaching = Growth(growth).reaching

    # Where a sequence is in an iteration, its length is base + growth there: so sums over the running
    # sequences are differences at the ends of stays, summed up, and no sequence is looked at twice.
    def present(each: Column) -> Column:
        weights = each * sequences
        return sum_changes(size, (first, weights), (last + 1, -weights))

    used = present(base) + growth * present(rate)
    # Where a block is a token, what is stored on demand says which are held.
    stored = used.copy() if block_size == 1 and not reserves else None

    # A static batch goes on generating for a row that has all its own tokens: those belong to no request.
    excess = np.maximum(end_length - final, 0)
    over = np.flatnonzero(excess)
    if len(over):
        turn = np.maximum(reaching(steps_for(final[over] + 1 - base[over], over)), first[over])
        rows = sequences[over]
        surplus = (final[over] - base[over]) * rows
        rows = rows * rate[over]
        used -= sum_changes(size, (turn, -surplus), (last[over] + 1, surplus))
        used -= growth * sum_changes(size, (turn, rows), (last[over] + 1, -rows))

    rounding = np.zeros(size, np.int64)
    fixed = np.where(on_demand, 0, held)
    if stored is not None:
        logical = physical = stored
    else:
        # What is held for drafts, beyond the tokens, is needed as long as it is held.
        drafts = ~on_demand & (reserved == 0)
        needed = np.where(drafts, held, -(-length // block_size))
        end_needed = np.where(drafts, held, -(-end_length // block_size))
        # Iterations at which a growing sequence opens a block: at lengths needed·size + 1 and every size on.
        openings = np.where(growing, end_needed - needed, 0)
        opener, nth = each_of(openings)
        missing = np.repeat(needed * block_size + 1 - base, openings) + nth * block_size
        opened_at = reaching(steps_for(missing, opener))

        logical = sum_changes(
            size,
            (first, sequences * needed),
            (opened_at, sequences[opener]),
            (last + 1, -sequences * end_needed),
        )
        # Reservations hold what they hold, whatever their tokens need, and share nothing.
        physical = present(np.where(on_demand, 0, held)) if reserves else logical
        if reserves and on_demand.any():
            whole = np.where(on_demand, sequences, 0)
            physical = physical + sum_changes(
                size,
                (first, whole * needed),
                (opened_at, whole[opener]),
                (last + 1, -whole * end_needed),
            )
        # On demand, slots are lost for good only in the sequence's last block, from when it is opened.
        last_block = -(-final // block_size)
        lost = np.where(on_demand, last_block * block_size - final, 0) * sequences
        from_start = on_demand & (needed == last_block)
        opens_it = on_demand & ~from_start & (end_needed == last_block)
        opening = steps_for(((last_block - 1) * block_size + 1 - base)[opens_it], opens_it)
        rounding = sum_changes(
            size,
            (first[from_start], lost[from_start]),
            (last[from_start] + 1, -lost[from_start]),
            (reaching(opening), lost[opens_it]),
            (last[opens_it] + 1, -lost[opens_it]),
        )
    if sharing is not None:
        physical = physical - sharing.blocks
        used -= sharing.blocks * block_size - sharing.slack
        rounding -= sharing.rounding
    unused_reservation = np.zeros(size, np.int64)
    if reserves:
        fixed *= block_size
        guess = np.clip(reserved, final, np.maximum(fixed, final))
        unused_reservation = present(np.where(on_demand, 0, guess - final))
        rounding += present(np.where(on_demand, 0, np.maximum(fixed - guess, 0)))

    entries = {
        "used": used,
        "reserved": physical * block_size - used - unused_reservation - rounding,
        "unused_reservation": unused_reservation,
        "rounding": rounding,
    }
    return entries, logical, physical


def paper_view(entries: Mapping[str, Slots], *, reserves: bool) -> dict[str, Slots]:
    """Return the paper's four categories (Fig. 2) from the strict view, in its unit.

    Args:
        entries: the strict view of some iterations, or its sums over them.
        reserves: whether memory is reserved ahead; where it is taken on demand the paper shows no
            reservation and no internal fragmentation.
    """
    nothing = 0 * entries["used"]
    used = entries["used"] + entries.get("state", nothing)
    reservation = entries["reserved"] if reserves else nothing
    internal = entries["unused_reservation"] if reserves else nothing
    return {
        "token_states": used,
        "reservation": reservation,
        "internal": internal,
        "external": sum(entries.values(), nothing) - used - reservation - internal,
    }

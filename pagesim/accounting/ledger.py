"""The ledger: every token slot of the KV cache under one name, at every iteration, in exact integers.

An engine that leaps does not look at memory in between. It leaves *stays* behind: from which iteration to
which a sequence held memory, how long it was then, and by what rule its memory follows from its length. From
those the ledger of every single iteration follows, so leaping loses nothing. Terms: ``docs/metrics.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.int64]
Slots = TypeVar("Slots", int, Column)

ENTRIES = ("used", "reserved", "over_reserved", "rounding", "external", "cached", "free")
"""The strict view's entries; they sum to the capacity."""

ON_DEMAND = -1
"""In ``Stay.held_blocks``: memory is taken block by block as the sequence grows."""


class Stay(NamedTuple):
    """A sequence's memory from one iteration to another, both included.

    A stay knows nothing of sharing: what sequences share is taken off for all of them together.

    Attributes:
        first, last: iterations.
        base: tokens whose KV is held once an iteration has run, less the steps of growth taken by then if the
            stay grows.
        final: tokens that the sequence will have in the end, the last one counted.
        held_blocks: blocks held throughout, or ``ON_DEMAND`` for as many as the tokens need.
        reserved: tokens that were reserved; 0 on demand.
        sequences: how many there are alike, each with blocks of its own as far as the stay knows.
        grows: 1 if every step of growth adds a token, 0 if the length rests.
    """

    first: int
    last: int
    base: int
    final: int
    held_blocks: int
    reserved: int
    sequences: int
    grows: int


class Sharing(NamedTuple):
    """What the stays count too often, at each iteration: names of a block beyond its first, ``[I]`` each.

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
    """The stays and the allocator disagree: a fault in pagesim, never in its input."""


def expand(
    stays: Column,
    growth: Column,
    *,
    block_size: int,
    num_blocks: int,
    external_blocks: Column,
    sharing: Sharing,
    cached_blocks: Callable[[Column], Column],
) -> Ledger:
    """Return the ledger of consecutive iterations.

    Args:
        stays: rows of `Stay`, ``[S, 8]``; iterations count from the first of these.
        growth: how many steps of growth had been taken at each iteration, ``[I]``, never falling.
        block_size: token slots a block.
        num_blocks: blocks of the cache.
        external_blocks: free blocks that are unusable for the head of the queue, ``[I]``.
        sharing: see `Sharing`.
        cached_blocks: tells free blocks whose content can still be found from the blocks held, ``[I]`` both.
    """
    size = len(growth)
    first, last, base, final, held, reserved, sequences, grows = stays.T
    growing = grows.astype(bool)
    on_demand = held == ON_DEMAND
    reserves = not on_demand.all()
    length = base + growth[first] * grows
    end_length = base + growth[last] * grows

    a_step_each = bool((np.diff(growth) == 1).all())

    def reaching(steps: Column, side: Literal["left", "right"] = "left") -> Column:
        """Return the first iterations at which growth is at least so far; with ``right``, further."""
        found: Column
        if size and a_step_each:
            found = np.clip(steps - growth[0] + (side == "right"), 0, size)
        else:
            found = np.searchsorted(growth, steps, side)
        return found

    # Where a sequence is in an iteration, its length is base + growth there: so sums over the running
    # sequences are differences at the ends of stays, summed up, and no sequence is looked at twice.
    def present(each: Column) -> Column:
        weights = each * sequences
        return _sum_changes(size, (first, weights), (last + 1, -weights))

    used = present(base) + growth * present(grows)

    # A static batch goes on generating for a row that has all its own tokens: those are nobody's.
    excess = np.maximum(end_length - final, 0)
    over = np.flatnonzero(excess)
    if len(over):
        turn = reaching(growth[first[over]] + final[over] - length[over], "right")
        rows = sequences[over]
        surplus = (final[over] - base[over]) * rows
        used -= _sum_changes(size, (turn, -surplus), (last[over] + 1, surplus))
        used -= growth * _sum_changes(size, (turn, rows), (last[over] + 1, -rows))

    needed = -(-length // block_size)
    end_needed = -(-end_length // block_size)
    # Iterations at which a growing sequence opens a new block: at lengths needed·size + 1 and every size on.
    openings = np.where(growing, end_needed - needed, 0)
    stay_of = np.repeat(np.arange(len(stays)), openings)
    nth = np.arange(len(stay_of)) - np.repeat(np.cumsum(openings) - openings, openings)
    at_growth = -base[stay_of] + (needed[stay_of] + nth) * block_size + 1
    opened_at = reaching(at_growth)

    logical = _sum_changes(
        size,
        (first, sequences * needed),
        (opened_at, sequences[stay_of]),
        (last + 1, -sequences * end_needed),
    )
    # Reservations hold what they hold, whatever their tokens need, and share nothing.
    fixed = np.where(on_demand, 0, held)
    physical = present(fixed) if reserves else logical - sharing.blocks
    used -= sharing.blocks * block_size - sharing.slack

    # On demand, slots are lost for good only in the sequence's last block, from when it is opened.
    last_block = -(-final // block_size)
    lost = np.where(on_demand, last_block * block_size - final, 0) * sequences
    from_start = on_demand & (needed == last_block)
    opens_it = on_demand & ~from_start & (end_needed == last_block)
    opening = (-base + (last_block - 1) * block_size + 1)[opens_it]
    rounding = _sum_changes(
        size,
        (first[from_start], lost[from_start]),
        (last[from_start] + 1, -lost[from_start]),
        (reaching(opening), lost[opens_it]),
        (last[opens_it] + 1, -lost[opens_it]),
    )
    rounding -= sharing.rounding
    over_reserved = np.zeros(size, np.int64)
    if reserves:
        fixed *= block_size
        guess = np.clip(reserved, final, np.maximum(fixed, final))
        over_reserved = present(np.where(on_demand, 0, guess - final))
        rounding += present(np.where(on_demand, 0, np.maximum(fixed - guess, 0)))

    allocated = physical * block_size
    external = external_blocks * block_size
    cached = cached_blocks(physical) * block_size
    entries = {
        "used": used,
        "reserved": allocated - used - over_reserved - rounding,
        "over_reserved": over_reserved,
        "rounding": rounding,
        "external": external,
        "cached": cached,
        "free": num_blocks * block_size - allocated - external - cached,
    }
    if size and min(int(column.min()) for column in entries.values()) < 0:
        raise LedgerError("an entry of the ledger is negative")
    return Ledger(entries, logical, physical)


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
    where = np.concatenate([each for each, _ in changes])
    amounts = np.concatenate([each for _, each in changes])
    # Sums of whole numbers below 2⁵³ are exact in float64, and bincount is much faster than add.at.
    return np.cumsum(np.bincount(where, amounts, size + 1)[:size]).astype(np.int64)

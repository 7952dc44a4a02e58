"""The ledger: every token slot of the KV cache under one name, at every iteration, in exact integers.

This is the ledger of a cache whose blocks are the same for all layers; that of a hybrid cache is in
``group_ledger.py``.

An engine that fast-forwards does not look at memory in between. It leaves *stays* behind: from which
iteration to which a sequence held memory, how long it was then, and by what rule its memory follows from its
length. From those the ledger of every single iteration follows, so a fast-forward loses nothing. Terms:
``docs/reference/metrics.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from pagesim.accounting.sums import Column, Stay, Stays
from pagesim.kvcache import BlockManager

__all__ = [
    "ENTRIES",
    "GROUP_ENTRIES",
    "HELD_WITHOUT_RUNNING",
    "HYBRID_ENTRIES",
    "ON_DEMAND",
    "Column",
    "GroupLedger",
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

HELD_WITHOUT_RUNNING = ("held_for_transfer", "landing", "loading", "fenced")
"""Entries of blocks that only requests hold that do not run, by what those wait for."""

ON_DEMAND = -1
"""Of blocks held throughout: memory is taken block by block as the sequence grows."""


class Sharing(NamedTuple):
    """What stays count too often, at each iteration: names of a block beyond its first, ``[I]`` each.

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
    """What was noted and the memory disagree: a fault in pagesim, never in its input."""


def expand(
    stays: Column,
    growth: Column,
    *,
    block_size: int,
    num_blocks: int,
    external_blocks: Column,
    sharing: Sharing,
    cached_blocks: Column,
    held_without_running: Mapping[str, Column],
) -> Ledger:
    """Return the ledger of consecutive iterations.

    Args:
        stays: rows of `Stay`, and two columns more, ``[S, 8]``; iterations count from the first of these. The
            columns are the blocks held throughout, or ``ON_DEMAND`` for as many as the tokens need, and the
            tokens that were reserved: 0 on demand, and of blocks taken for drafts as well.
        growth: how many steps of growth had been taken at each iteration, ``[I]``, never falling.
        block_size: tokens a block.
        num_blocks: blocks of the cache.
        external_blocks: free blocks that are unusable for the head of the queue, ``[I]``.
        sharing: what the stays count too often.
        cached_blocks: free blocks whose content can still be found, ``[I]``; where fewer blocks are free, all
            of them are cached.
        held_without_running: by their entry, blocks that only requests hold that do not run, ``[I]`` each.
    """
    entries, logical, physical = _held(stays, growth, block_size, sharing)
    for name, held in held_without_running.items():
        entries[name] = held * block_size
        logical, physical = logical + held, physical + held
    cached = np.minimum(cached_blocks, num_blocks - physical)
    entries["external"] = external_blocks * block_size
    entries["cached"] = cached * block_size
    entries["free"] = (num_blocks - physical - external_blocks - cached) * block_size
    if len(growth) and min(int(column.min()) for column in entries.values()) < 0:
        raise LedgerError("an entry of the ledger is negative")
    names = (*ENTRIES[:4], *held_without_running, *ENTRIES[4:])
    return Ledger({name: entries[name] for name in names}, logical, physical)


def _held(
    stays: Column, growth: Column, block_size: int, sharing: Sharing
) -> tuple[dict[str, Column], Column, Column]:
    """Return the entries of what is held, logical and physical blocks, ``[I]`` each."""
    width = len(Stay._fields)
    of_all = Stays(growth, stays[:, :width])
    held, reserved = stays[:, width:].T
    final = of_all.final
    on_demand = held == ON_DEMAND
    reserves = ~on_demand & (reserved > 0)
    fixed = np.where(on_demand, 0, held)
    demand = of_all.only(on_demand)
    demanded = demand.blocks(block_size)
    # Blocks taken for drafts, beyond the tokens, are needed as long as they are held.
    drafts = np.where(reserves, 0, fixed)
    logical = demanded + of_all.only(reserves).blocks(block_size) + of_all.present(drafts)
    # Reservations hold what they hold, whatever their tokens need, and share nothing.
    physical = demanded + of_all.present(fixed)

    used = of_all.own_length()
    fixed = fixed * block_size
    promised = np.clip(reserved, final, np.maximum(fixed, final))
    unused_reservation = of_all.present(promised - final)
    rounding = demand.rounding(block_size) + of_all.present(np.maximum(fixed - promised, 0))

    physical = physical - sharing.blocks
    used -= sharing.blocks * block_size - sharing.slack
    rounding -= sharing.rounding
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

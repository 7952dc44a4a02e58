"""The ledger: assigns every token slot of the KV cache to one entry per iteration, in exact integers.

This module handles caches whose blocks are the same for all layers; ``group_ledger.py`` handles hybrid
caches.

An engine does not inspect memory while it fast-forwards. Instead it records *stays*: the iterations during
which a sequence held memory, its length then, and the rule that derives its memory from its length. The
ledger of every single iteration is computed from the stays, so a fast-forward loses nothing. Terms:
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
"""Entries of the strict view; they sum to the capacity."""

GROUP_ENTRIES = ("used", "state", "reserved", "unused_reservation", "rounding", "padding", "out_of_window")
"""Entries of the blocks held in one KV cache group of a hybrid cache."""

HYBRID_ENTRIES = (*GROUP_ENTRIES, "external", "cached", "free")
"""Entries of the strict view for a hybrid cache, in bytes."""

HELD_WITHOUT_RUNNING = ("held_for_transfer", "landing", "loading", "fenced")
"""Entries of blocks held only by requests that are not running, named after what these wait for."""

ON_DEMAND = -1
"""Marks a stay, in place of its block count, whose blocks are allocated one by one as the sequence grows."""


class Sharing(NamedTuple):
    """What stays count more than once: references to a block beyond its first, ``[I]`` each.

    Attributes:
        blocks: number of these extra references.
        slack: token slots that these references count and no token fills yet, all in shared last blocks.
        rounding: those of these slots that no token will ever fill.
    """

    blocks: Column
    slack: Column
    rounding: Column


@dataclass(frozen=True, slots=True)
class LedgerShape:
    """The entries and the capacity of a KV cache's ledger.

    Attributes:
        entries: names of the strict view's entries, in order.
        capacity: sum of the entries, in token slots; bytes on each GPU for a hybrid cache.
        num_blocks: blocks of the cache.
        groups: names of a hybrid cache's KV cache groups, made of number and rule.
    """

    entries: tuple[str, ...]
    capacity: int
    num_blocks: int
    groups: tuple[str, ...] = ()

    @classmethod
    def of(cls, memory: BlockManager, parks: tuple[str, ...] = ()) -> LedgerShape:
        """Return a block manager's ledger shape; ``parks`` are the entries for requests that do not run."""
        if not memory.is_hybrid:
            entries = (*ENTRIES[:4], *parks, *ENTRIES[4:])
            return cls(entries, memory.num_blocks * memory.block_size, memory.num_blocks)
        groups = tuple(f"{number}:{group.kind}" for number, group in enumerate(memory.groups))
        entries = (*GROUP_ENTRIES, *parks, *HYBRID_ENTRIES[len(GROUP_ENTRIES) :])
        return cls(entries, memory.capacity_bytes, memory.num_blocks, groups)


@dataclass(frozen=True, slots=True)
class GroupLedger:
    """One KV cache group's part of a hybrid cache's ledger, as columns over iterations, ``[I]``.

    Attributes:
        entries: bytes by the names in ``GROUP_ENTRIES``.
        blocks: blocks held.
    """

    entries: dict[str, Column]
    blocks: Column


@dataclass(frozen=True, slots=True)
class Ledger:
    """The ledger as columns over iterations, ``[I]``, in token slots; in bytes for a hybrid cache.

    Attributes:
        entries: the strict view, by the names in ``ENTRIES`` or ``HYBRID_ENTRIES``.
        logical_blocks: blocks that the running sequences would hold for their tokens without sharing, plus
            those held only by requests that are not running.
        physical_blocks: blocks held, including those of requests that are not running.
        groups: the KV cache groups' parts, for a hybrid cache.
    """

    entries: dict[str, Column]
    logical_blocks: Column
    physical_blocks: Column
    groups: tuple[GroupLedger, ...] = ()


class LedgerError(AssertionError):
    """The recorded stays contradict the block manager: a bug in pagesim, never in its input."""


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
        stays: rows of `Stay` with two extra columns, ``[S, 8]``; iterations are relative to the first one.
            The extra columns are the blocks held throughout, or ``ON_DEMAND`` for as many as the tokens need,
            and the tokens reserved, which are 0 on demand and for blocks allocated for draft tokens.
        growth: steps of growth completed at each iteration, ``[I]``, non-decreasing.
        block_size: tokens per block.
        num_blocks: blocks of the cache.
        external_blocks: free blocks that the request at the head of the queue cannot use, ``[I]``.
        sharing: what the stays count more than once.
        cached_blocks: free blocks whose content can still be hit, ``[I]``; capped at the free blocks.
        held_without_running: blocks held only by requests that are not running, by entry, ``[I]`` each.
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
    """Return the entries of held memory, the logical blocks and the physical blocks, ``[I]`` each."""
    width = len(Stay._fields)
    of_all = Stays(growth, stays[:, :width])
    held, reserved = stays[:, width:].T
    final = of_all.final
    on_demand = held == ON_DEMAND
    reserves = ~on_demand & (reserved > 0)
    fixed = np.where(on_demand, 0, held)
    demand = of_all.only(on_demand)
    demanded = demand.blocks(block_size)
    # Blocks allocated for draft tokens count as needed for as long as they are held.
    drafts = np.where(reserves, 0, fixed)
    logical = demanded + of_all.only(reserves).blocks(block_size) + of_all.present(drafts)
    # A reservation holds all its blocks, whatever its tokens need, and shares none.
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
    """Return the paper's four categories (Fig. 2), computed from the strict view and in its unit.

    Args:
        entries: the strict view over iterations, or its sums over them.
        reserves: whether memory is reserved at admission; for allocation on demand the paper shows no
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

"""Cells: a pool of blocks as columns with each block's owner, and the ledger computed from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pagesim.accounting.ledger import ENTRIES
from pagesim.kvcache import ContiguousManager, HybridManager, NumberedPrefixManager, PagedManager
from pagesim.scheduling.request import EngineRequest

Column = npt.NDArray[np.int64]

AddressedManager = PagedManager | NumberedPrefixManager | ContiguousManager | HybridManager
"""Block managers whose blocks have numbers."""

FREE, CACHED = -1, -2
"""Codes in place of an owner: free, or free with content that can still be hit (CACHED - g in group g)."""

MOST_CELLS = 1 << 17
"""Blocks with numbers from this one on are left out of snapshots."""


class StayTable(NamedTuple):
    """The blocks of a stay in token order, ``[B]``, and their indices in its block table, ``[B]``."""

    blocks: Sequence[int] | Column
    places: Sequence[int] | Column


def blank(blocks: int) -> Column:
    """Return owner, place and references of a pool whose blocks are all free, ``[3, blocks]``."""
    cells = np.zeros((3, blocks), np.int64)
    cells[0], cells[1] = FREE, 1
    return cells


def cells_of(
    blocks: int,
    stays: Sequence[int],
    tables: Sequence[StayTable],
    precedence: Sequence[int],
    memory: AddressedManager | None = None,
) -> Column:
    """Return owner, place and references of each block, ``[3, blocks]``.

    The owner is a stay, ``FREE`` or ``CACHED``. The place is the index in the owner's block table; for a free
    block it is 0 at the start of a free run, else 1. References count the tables that contain the block.

    Args:
        blocks: blocks of the pool.
        stays: stays that hold blocks, ``[S]``.
        tables: block table of each stay.
        precedence: precedence of each stay; a shared block belongs to the highest one, ``[S]``.
        memory: block manager that knows free runs and cached blocks, if these are to be marked.
    """
    cells = blank(blocks)
    if tables:
        sizes = [len(table.blocks) for table in tables]
        held, place = (np.concatenate([_numbers(table[part]) for table in tables]) for part in (0, 1))
        owner = np.repeat(np.array(stays, np.int64), sizes)
        order = np.argsort(np.repeat(np.array(precedence, np.int64), sizes), kind="stable")
        cells[0][held[order]] = owner[order]
        cells[1][held[order]] = place[order]
        cells[2] = np.bincount(held, minlength=blocks)
    if memory is not None:
        runs = memory.free_chunks() if isinstance(memory, ContiguousManager) else memory.free_extents()
        for first, _ in runs:
            cells[1, first] = 0
        if isinstance(memory, HybridManager):
            for group in range(len(memory.groups)):
                cells[0, memory.cached_in(group)] = CACHED - group
        elif isinstance(memory, NumberedPrefixManager):
            for first, count in memory.cached_extents():
                cells[0, first : first + count] = CACHED
    return cells


def _numbers(some: Sequence[int] | Column) -> Column:
    return np.arange(some.start, some.stop) if isinstance(some, range) else np.array(some, np.int64)


def samples_of(memory: AddressedManager, request: EngineRequest) -> list[StayTable]:
    """Return all blocks of each sample of a request, including reserved ones."""
    samples: list[Sequence[int]]
    if isinstance(memory, ContiguousManager):
        runs = [memory.extents(request, sample)[0] for sample in range(request.samples)]
        samples = [range(first, first + blocks) for first, blocks in runs]
    else:
        samples = [memory.blocks_of(request, sample) for sample in range(request.samples)]
    return [StayTable(blocks, range(len(blocks))) for blocks in samples]


def reservation_of(memory: AddressedManager, request: EngineRequest) -> int | None:
    """Return the tokens reserved for each sample; None if memory is allocated on demand."""
    reserved = memory.held_and_reserved(request)
    return None if reserved is None else reserved[1]


def changes(before: Column, after: Column) -> Column:
    """Return the changed cells: block, owner, place and references of each, ``[4, C]``."""
    (at,) = np.nonzero((before != after).any(axis=0)[:MOST_CELLS])
    return np.vstack([at, after[:, at]])


def ledger_of(
    cells: Column,
    stays: Column,
    lengths: Column,
    known: Column,
    *,
    block_size: int,
    external: bool,
    parks: Sequence[str] = (),
) -> Column:
    """Return the strict view's entries, ``[7]`` plus one per park, in slots, computed only from the cells.

    Args:
        cells: cells as returned by `cells_of`.
        stays: stays on the device, ``[S]``.
        lengths: tokens that each stay holds, ``[S]``.
        known: the table `Snapshots.stays`, ``[K, 6]``.
        block_size: token slots per block.
        external: whether the request at the head of the queue cannot use the free blocks.
        parks: entries for requests that hold without running, in the order of `LedgerShape.entries`.
    """
    owner, place, _ = cells
    park = park_of(owner, known)
    held = park == 0
    length = np.zeros(len(known), np.int64)
    length[stays] = lengths
    of, start = owner[held], place[held] * block_size
    final, reserved = known[of, 2], known[of, 3]
    ends = (np.minimum(length[of], final), final, reserved)
    used, filled, wanted = (np.clip(end - start, 0, block_size) for end in ends)
    free = int((owner == FREE).sum()) * block_size
    entries = {
        "used": used.sum(),
        "reserved": (filled - used).sum(),
        "unused_reservation": (wanted - filled).sum(),
        "rounding": (block_size - wanted).sum(),
        "external": free if external else 0,
        "cached": int((owner == CACHED).sum()) * block_size,
        "free": 0 if external else free,
    }
    for number, name in enumerate(parks, 1):
        entries[name] = int((park == number).sum()) * block_size
    return np.array([entries[name] for name in (*ENTRIES[:4], *parks, *ENTRIES[4:])], np.int64)


def park_of(owner: Column, known: Column) -> Column:
    """Return each block's park: 0 if a running request holds it, -1 if no request does."""
    park = np.full(len(owner), -1)
    park[owner >= 0] = known[owner[owner >= 0], 5]
    return park

"""Cells: a pool of blocks as columns: whose each block is, and what the ledger makes of that."""

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
"""Memory whose blocks have numbers."""

FREE, CACHED = -1, -2
"""In place of an owner: none; none, and the content can still be found. Of KV group g that is CACHED - g."""

MOST_CELLS = 1 << 17
"""Blocks beyond this number are on no snapshot."""


class Table(NamedTuple):
    """The blocks that a stay has, in token order, ``[B]``, and their places in its table, ``[B]``."""

    blocks: Sequence[int] | Column
    places: Sequence[int] | Column


def blank(blocks: int) -> Column:
    """Return owner, place and references of blocks that are free, ``[3, blocks]``."""
    cells = np.zeros((3, blocks), np.int64)
    cells[0], cells[1] = FREE, 1
    return cells


def cells_of(
    blocks: int,
    stays: Sequence[int],
    tables: Sequence[Table],
    precedence: Sequence[int],
    memory: AddressedManager | None = None,
) -> Column:
    """Return what each block is, ``[3, blocks]``.

    Its owner is a stay, ``FREE`` or ``CACHED``; its place the number in its owner's table, and of a free
    block 0 where a free run begins, else 1; its references are names in tables.

    Args:
        blocks: of the pool.
        stays: that hold some, ``[S]``.
        tables: the blocks of each.
        precedence: of each; a block that several have counts as that of the one with the highest, ``[S]``.
        memory: knows the free runs, where they are to be told apart.
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


def samples_of(memory: AddressedManager, request: EngineRequest) -> list[Table]:
    """Return all blocks that each sample of a request has, reserved ones included."""
    samples: list[Sequence[int]]
    if isinstance(memory, ContiguousManager):
        runs = [memory.extents(request, sample)[0] for sample in range(request.samples)]
        samples = [range(first, first + blocks) for first, blocks in runs]
    else:
        samples = [memory.blocks_of(request, sample) for sample in range(request.samples)]
    return [Table(blocks, range(len(blocks))) for blocks in samples]


def reservation_of(memory: AddressedManager, request: EngineRequest) -> int | None:
    """Return the tokens reserved for each sample; None on demand, where none are that are not filled."""
    reserved = memory.held_and_reserved(request)
    return None if reserved is None else reserved[1]


def changes(before: Column, after: Column) -> Column:
    """Return the cells that differ: block, owner, place and references of each, ``[4, C]``."""
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
    """Return the entries of the strict view, ``[7]`` and one a park, in slots, from the cells alone.

    Args:
        cells: as `cells_of` returns them.
        stays: that are there, ``[S]``.
        lengths: tokens that they hold, ``[S]``.
        known: as of `Snapshots.stays`, ``[K, 6]``.
        block_size: token slots a block.
        external: whether what is free is of no use to the head of the queue.
        parks: entries of what requests hold that do not run, in the order of `LedgerShape.entries`.
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
    """Return of each block 0 where a running request holds it, its park where another does, -1 where none."""
    park = np.full(len(owner), -1)
    park[owner >= 0] = known[owner[owner >= 0], 5]
    return park

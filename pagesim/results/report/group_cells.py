"""Group cells: block tables of a hybrid cache, and the ledger computed from its cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pagesim.accounting.ledger import GROUP_ENTRIES, HYBRID_ENTRIES
from pagesim.kvcache import HybridManager, KVGroup
from pagesim.results.report.cells import CACHED, FREE, Column, StayTable, park_of
from pagesim.scheduling.request import EngineRequest

NULL = -1


def tables_of(memory: HybridManager, request: EngineRequest) -> list[StayTable]:
    """Return a request's blocks in each group and their indices in the group's block table."""
    tables = []
    for group in range(len(memory.groups)):
        blocks = np.array(memory.block_table(request, group=group), np.int64)
        (places,) = np.nonzero(blocks != NULL)
        tables.append(StayTable(blocks[places], places))
    return tables


def described(groups: Sequence[KVGroup]) -> list[dict[str, Any]]:
    """Return what the page needs to know about each group: name, and tokens and bytes of its blocks."""
    return [
        {
            "name": f"{number} {group.kind.replace('-', ' ')}",
            "size": group.block_size,
            "filled": group.filled,
            "slot": group.slot_bytes,
        }
        for number, group in enumerate(groups)
    ]


def ledger_of_groups(
    cells: Column,
    stays: Column,
    lengths: Column,
    needed: Column,
    known: Column,
    memory: HybridManager,
    *,
    parks: Sequence[str] = (),
) -> Column:
    """Return the strict view's entries, ``[10]`` plus one per park, in bytes, computed only from the cells.

    Args:
        cells: cells as returned by `cells_of`.
        stays: stays on the device, ``[S]``.
        lengths: tokens that each stay holds, ``[S]``.
        needed: first token to which each stay's tokens still attend, ``[S]``.
        known: the table `Snapshots.stays`, ``[K, 6]``.
        memory: block manager with the groups.
        parks: entries for requests that hold without running, in the order of `LedgerShape.entries`.
    """
    owner, place, _ = cells
    park = park_of(owner, known)
    held = park == 0
    ends = np.zeros((2, len(known)), np.int64)
    ends[:, stays] = needed, np.minimum(lengths, known[stays, 2])
    of = owner[held]
    size, filled, slot = np.array([(g.block_size, g.filled, g.slot_bytes) for g in memory.groups])[
        known[of, 4]
    ].T
    start = place[held] * size
    before, length, final = (np.clip(end - start, 0, size) for end in (*ends[:, of], known[of, 2]))
    entries = dict.fromkeys(HYBRID_ENTRIES, 0) | {
        "used": ((length - before) * slot).sum(),
        "state": filled[slot == 0].sum(),
        "reserved": ((final - length) * slot).sum(),
        "rounding": ((size - final) * slot).sum(),
        "out_of_window": (before * slot).sum(),
        "padding": (memory.page_bytes - filled).sum(),
        "cached": int((owner <= CACHED).sum()) * memory.page_bytes,
        "free": int((owner == FREE).sum()) * memory.page_bytes,
    }
    for number, name in enumerate(parks, 1):
        entries[name] = int((park == number).sum()) * memory.page_bytes
    first = len(GROUP_ENTRIES)
    names = (*HYBRID_ENTRIES[:first], *parks, *HYBRID_ENTRIES[first:])
    return np.array([entries[name] for name in names], np.int64)

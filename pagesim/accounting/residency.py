"""Residency: the iterations during which requests held memory, and the resulting ledger."""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections import Counter
from collections.abc import Sequence
from struct import Struct

import numpy as np

from pagesim.accounting.chunks import Rows
from pagesim.accounting.ledger import ON_DEMAND, Ledger, Sharing, expand
from pagesim.accounting.sums import Column, Stay
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.request import EngineRequest
from pagesim.setup.compiled import mypyc_attr

_WIDTH = len(Stay._fields) + 2
_pack_stay = Struct(f"{_WIDTH}q").pack


@mypyc_attr(allow_interpreted_subclasses=True)
class Residency:
    """Records what determines the ledger of a chunk's iterations, and drops it once the ledger is computed.

    Args:
        scheduler: scheduler and its block manager.
    """

    __slots__ = ("memory", "scheduler")

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.memory = scheduler.memory

    @abstractmethod
    def note(self, request: EngineRequest, first: int, last: int) -> None:
        """Record that a request held memory by one rule from ``first`` through ``last`` and still does."""

    def planned(self, batch: Batch, iteration: int) -> None:
        """Record the state after a plan."""
        return

    def fast_forwarded(self, iteration: int, steps: int) -> None:
        """Record the state before a fast-forward of ``steps`` steps."""
        return

    @abstractmethod
    def take(self, rows: Rows, first: int) -> Ledger:
        """Return the ledger of all iterations since the last call.

        Args:
            rows: rows of these iterations, one per planned iteration and one per fast-forward.
            first: number of the first of them.

        Raises:
            LedgerError: the recorded stays contradict the block manager.
        """


class PlainResidency(Residency):
    """Records the stays in a cache whose blocks are the same for all layers."""

    __slots__ = ("_stays",)

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self._stays = array("q")  # flat rows: `Stay`, blocks held throughout, tokens reserved

    def note(self, request: EngineRequest, first: int, last: int) -> None:
        memory = self.memory
        if self.scheduler.decodes_apart:
            stored, blocks = self.scheduler.stored_length(request), memory.held_blocks(request)
            self._stays.fromlist([first, last, stored, request.final_length, 1, 0, blocks, 0])
            return
        growth, base = (1, request.length_offset) if request.decodes else (0, request.tokens)
        blocks, reserved = ON_DEMAND, 0
        if not memory.grows:
            blocks, reserved = memory.held_and_reserved(request) or (ON_DEMAND, 0)
        if request.family is None:
            final = request.prompt + request.output
            self._stays.frombytes(_pack_stay(first, last, base, final, 1, growth, blocks, reserved))
            return
        for final, alike in Counter(request.finals).items():
            self._stays.fromlist([first, last, base, final, alike, growth, blocks, reserved])

    def take(self, rows: Rows, first: int) -> Ledger:
        memory = self.memory
        stays = np.array(self._stays, np.int64).reshape(-1, _WIDTH)
        stays[:, :2] -= first
        del self._stays[:]
        cached = counts_in(rows, rows["cached_blocks"][:, None], memory.take_changes())[:, 0]
        return expand(
            stays,
            rows.growth,
            block_size=memory.block_size,
            num_blocks=memory.num_blocks,
            external_blocks=rows.spread("external_blocks"),
            sharing=Sharing(*(rows.spread(f"shared_{name}") for name in Sharing._fields)),
            cached_blocks=cached,
            held_without_running={name: rows.spread(name) for name in self.scheduler.parks},
        )


def counts_in(rows: Rows, noted: Column, changes: Sequence[tuple[int, ...]]) -> Column:
    """Return the block manager's counts at each iteration, ``[I, C]``, updated for later growth.

    Args:
        rows: rows of planned iterations and fast-forwards.
        noted: counts after each plan and before each fast-forward, ``[S, C]``.
        changes: result of `BlockManager.take_changes`: steps of growth and the counts after each.
    """
    counts = rows.spread_out(noted)
    if not len(changes):
        return counts
    table = np.array(changes, np.int64)
    steps = table[:, 0]
    # In a fast-forward, changes apply to every iteration from the first change on.
    before = np.where(rows["planned"], len(steps), np.searchsorted(steps, rows["growth"]))
    changed = np.searchsorted(steps, rows.growth, "right")
    grown = np.flatnonzero(changed > rows.spread_out(before))
    counts[grown] = table[changed[grown] - 1, 1:]
    return counts

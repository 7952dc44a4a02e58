"""Tier history: the ledger of each tier over time, change by change."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from pagesim.accounting.ledger import Column
from pagesim.kvcache.tiers import ENTRIES, UNLIMITED, ChunkStore
from pagesim.scheduling.arrivals import NEVER
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.observer import FastForward, Observer

BLOCKS = 32
"""Device blocks that may be scanned per change."""


class TierHistory(Observer):
    """Records the contents of each tier of an engine whenever they change.

    Tiers change only in planned iterations, whether or not other iterations are fast-forwarded. In each of
    them the pending, pinned and free chunks are counted. Finding which other chunks the device also holds
    means scanning all its blocks, so this is done at some changes only: n³ changes after the n-th scan, but
    no later than one change per `BLOCKS` blocks. Between scans their share is assumed to be constant.

    Attributes:
        names: names of the tiers, starting with the one closest to the device.
        capacities: capacity of each tier, in chunks.
    """

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        self.capacities: tuple[int, ...] = ()
        self._connector: Any = None
        self._stores: Sequence[ChunkStore] = ()
        self._now: list[tuple[int, int, int]] = []  # pending, pinned and free chunks of each tier
        # Per tier at the last scan: chunks also on the device, and those plus the chunks only in the tier.
        self._shares: list[tuple[int, int]] = []
        self._since = self._looks = 0  # changes since the last scan, and scans
        self._rarely = 0  # maximum number of changes between scans
        self._last = 0  # ticks
        self._rows = array("q")

    def begun(self, scheduler: Scheduler) -> None:
        self._connector = scheduler.connector
        self._rarely = scheduler.memory.num_blocks // BLOCKS
        tiers = self._connector.tiers()
        self._stores = [tier.store for tier in tiers]
        self.names = tuple([tier.name for tier in tiers])
        self.capacities = tuple([store.capacity for store in self._stores])

    def planned(self, batch: Batch, now: int, start: int, ticks: int) -> None:
        self._note(now)

    def fast_forwarded(self, run: FastForward) -> None:
        self._note(run.start)

    def next_look(self) -> int:
        # The device is scanned only in planned iterations.
        return 0 if self._looks_next() and self._counts() != self._now else NEVER

    def idle(self, now: int, until: int) -> None:
        self._note(now)

    def end(self, now: int) -> None:
        """Finish recording at ``now``, or at the last change if later, with a final scan."""
        if self._rows:
            self._look()
            self._write(max(now, self._last))

    def columns(self) -> dict[str, Column]:
        """Return the changes, ``[C · tiers]`` each: ticks, index of the tier, and its entries in chunks."""
        table = np.array(self._rows, np.int64).reshape(-1, 2 + len(ENTRIES))
        return dict(zip(("ticks", "tier", *ENTRIES), table.T, strict=True))

    def summary(self) -> dict[str, dict[str, Any]]:
        """Return each tier's capacity in chunks and its entries in percent of it, averaged over time.

        For an unlimited tier, capacity and ``free`` are None, and percentages refer to the chunks stored.
        """
        columns, tiers = self.columns(), max(1, len(self.names))
        spans = np.diff(columns["ticks"][::tiers]).astype(np.float64)
        found = {}
        for place, (name, capacity) in enumerate(zip(self.names, self.capacities, strict=True)):
            sums = {entry: float(columns[entry][place::tiers][:-1] @ spans) for entry in ENTRIES}
            if capacity >= UNLIMITED:
                del sums["free"]
            whole = sum(sums.values())
            found[name] = {
                "capacity": capacity if capacity < UNLIMITED else None,
                "per_second": {
                    entry: 100 * sums[entry] / whole if whole and entry in sums else None for entry in ENTRIES
                },
            }
        return found

    # Inside

    def _note(self, now: int) -> None:
        counts = self._counts()
        if counts == self._now:
            return
        looks = self._looks_next()
        self._now = counts
        self._since += 1
        if looks:
            self._look()
            self._looks += 1
            self._since = 0
        self._write(now)

    def _counts(self) -> list[tuple[int, int, int]]:
        return [store.counts() for store in self._stores]

    def _looks_next(self) -> bool:
        """Return whether the device is scanned at the next change of a tier."""
        return self._since >= min(self._looks**3, self._rarely)

    def _look(self) -> None:
        found = [tier.entries() for tier in self._connector.tiers()]
        self._shares = [(each["duplicate"], each["duplicate"] + each["kept"]) for each in found]

    def _write(self, now: int) -> None:
        self._last = now
        for place, (pending, pinned, free) in enumerate(self._now):
            rest = self.capacities[place] - pending - pinned - free
            both, of = self._shares[place]
            duplicate = rest * both // of if of else 0
            self._rows.fromlist([now, place, pending, pinned, duplicate, rest - duplicate, free])

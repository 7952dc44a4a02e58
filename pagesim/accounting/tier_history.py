"""Tier history: the ledger of each tier over time, looked at often enough and not more often."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from pagesim.accounting.ledger import Column
from pagesim.kvcache.tiers import ENTRIES, TierCounts
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.observer import Observer

UNLIMITED = 1 << 62
"""Chunks of a tier without a limit."""

SPACING = 8
"""After n looks the next comes n // SPACING + 1 changes later: k changes are looked at 4·√k times."""


class TierHistory(Observer):
    """Notes what each tier of an engine has whenever that has changed.

    Tiers change in iterations that are planned, whether others are forwarded over or not. In each of them
    the chunks that are pending, pinned and free are counted. What of the others the device has as well is
    looked for among all of its blocks. So that is done at every change in the beginning, and then less often.

    Attributes:
        names: of the tiers, that next to the device first.
        capacities: of each, in chunks.
    """

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        self.capacities: tuple[int, ...] = ()
        self._connector: Any = None
        self._tiers: Sequence[TierCounts] = ()
        self._began: int | None = None
        self._counted = 0  # the instant up to which time is weighed
        self._now: list[tuple[int, int, int]] = []  # pending, pinned and free of each tier
        self._duplicate: list[tuple[int, int]] = []  # of each at the last look: on the device too, and all
        self._changes = self._looks = self._next = 0
        self._sums: Counter[tuple[int, str]] = Counter()  # chunks times ticks
        self._rows = array("q")

    def begun(self, scheduler: Scheduler) -> None:
        self._connector = scheduler.connector  # type: ignore[attr-defined]
        self._tiers = self._connector.tiers()
        self.names = tuple([tier.name for tier in self._tiers])
        self.capacities = tuple([tier.capacity for tier in self._tiers])

    def planned(self, batch: Batch, now: int, start: int, ticks: int) -> None:
        self._note(now)

    def idle(self, now: int, until: int) -> None:
        self._note(now)

    def end(self, now: int) -> None:
        """Say that the run is over, at this instant at the earliest; look once more."""
        if self._began is not None:
            self._weigh(now)
            self._look(self._counted)

    def columns(self) -> dict[str, Column]:
        """Return the looks, ``[L · tiers]`` each: ticks, the tier's place, and its entries in chunks."""
        table = np.array(self._rows, np.int64).reshape(-1, 2 + len(ENTRIES))
        return dict(zip(("ticks", "tier", *ENTRIES), table.T, strict=True))

    def summary(self) -> dict[str, dict[str, Any]]:
        """Return of each tier its capacity in chunks, and its entries in percent of it, mean over time.

        Those that are pending, pinned and free are exact. What the device has as well is of the others the
        share that it was at the last look.
        """
        began = self._began
        span = 0 if began is None else self._counted - began
        return {
            name: {
                "capacity": capacity if capacity < UNLIMITED else None,
                "per_second": {
                    entry: 100 * self._sums[place, entry] / (capacity * span) if capacity * span else None
                    for entry in ENTRIES
                },
            }
            for place, (name, capacity) in enumerate(zip(self.names, self.capacities, strict=True))
        }

    # Inside

    def _note(self, now: int) -> None:
        counts = [(tier.pending, tier.pinned, tier.free) for tier in self._tiers]
        if counts == self._now:
            return
        if self._began is None:
            self._began = self._counted = now
        self._weigh(now)
        self._now = counts
        self._changes += 1
        if self._changes > self._next:
            self._look(now)
            self._looks += 1
            self._next = self._looks // SPACING
            self._changes = 0

    def _look(self, now: int) -> None:
        found = []
        for place, tier in enumerate(self._connector.tiers()):
            entries = tier.entries()
            self._rows.fromlist([now, place, *entries.values()])
            found.append((entries["duplicate"], entries["duplicate"] + entries["kept"]))
        self._duplicate = found

    def _weigh(self, now: int) -> None:
        """Add up what there was until now."""
        span = now - self._counted
        if span <= 0:
            return
        self._counted = now
        sums = self._sums
        for place, (pending, pinned, free) in enumerate(self._now):
            rest = self.capacities[place] - pending - pinned - free
            both, of = self._duplicate[place]
            duplicate = rest * both // of if of else 0
            each = (pending, pinned, duplicate, rest - duplicate, free)
            for entry, chunks in zip(ENTRIES, each, strict=True):
                sums[place, entry] += chunks * span

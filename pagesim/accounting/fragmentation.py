"""Fragmentation: the ledger's entries under their standard names, and their shares of the cache.

* **used**: slots that hold a token's keys and values.
* **reserved**: slots that a request holds and that its later tokens will fill.
* **internal fragmentation**: slots that a request holds and that no token will ever fill. Its parts are
  *unused reservation* (the output is shorter than guessed), *rounding* (to a block or to a power of two) and,
  in a hybrid cache, *padding* (all blocks are as large as the largest KV cache group's).
* **external fragmentation**: free slots at a moment at which the request at the head of the queue would fit
  into them by count, but the allocator cannot place it.
* **cached**: slots of blocks that no request holds, kept in case their prefixes are reused.
* **free**: all other free slots.

``docs/reference/metrics.md`` has the formulas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

__all__ = ["INTERNAL", "LABELS", "Category", "categories", "fragmentation_of"]

LABELS = {
    "used": "used",
    "state": "recurrent states",
    "reserved": "reserved",
    "unused_reservation": "unused reservation",
    "rounding": "rounding",
    "padding": "padding",
    "out_of_window": "out of window",
    "held_for_transfer": "held for transfer",
    "landing": "landing",
    "loading": "loading",
    "fenced": "fenced",
    "external": "external fragmentation",
    "cached": "cached",
    "free": "free",
}
"""Labels of the ledger's entries in tables, in the order of `pagesim.accounting.metrics.STRICT_ENTRIES`."""

INTERNAL = ("unused_reservation", "rounding", "padding")
"""Entries of the ledger that are internal fragmentation."""


class Category(NamedTuple):
    """A row of a memory table.

    Attributes:
        name: name in files: an entry of the ledger, or ``internal_fragmentation``.
        label: name in tables.
        entries: entries of the ledger that it sums.
        is_part: whether it is a part of internal fragmentation, whose row includes it.
    """

    name: str
    label: str
    entries: tuple[str, ...]
    is_part: bool = False

    @property
    def indented(self) -> str:
        """The label, indented by two spaces for a part."""
        return f"  {self.label}" if self.is_part else self.label

    def share(self, shares: Mapping[str, float | None]) -> float | None:
        """Return the sum of its entries' shares, counting absent ones as 0; None if one is None.

        Args:
            shares: shares of the capacity, by entry of the ledger.
        """
        total = 0.0
        for entry in self.entries:
            share = shares.get(entry, 0.0)
            if share is None:
                return None
            total += share
        return total


def categories(entries: Iterable[str]) -> list[Category]:
    """Return the rows of a memory table for the given entries of the ledger, in order.

    Every entry is in exactly one row that is not a part, so the shares of these rows add up to 1.
    """
    there = set(entries)
    internal = tuple(entry for entry in INTERNAL if entry in there)
    rows: list[Category] = []
    for entry in filter(there.__contains__, LABELS):
        if internal and entry == internal[0]:
            rows.append(Category("internal_fragmentation", "internal fragmentation", internal))
        rows.append(Category(entry, LABELS[entry], (entry,), entry in internal))
    return rows


def fragmentation_of(memory: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    """Return shares of the capacity, by column and row label; None where nothing ran.

    Args:
        memory: ``memory`` of a run's summary, in percent.
    """
    strict = memory["strict"]
    rows = categories(strict["per_iteration"])
    percent = {
        "mean over iterations": [row.share(strict["per_iteration"]) for row in rows],
        "mean over time": [row.share(strict["per_second"]) for row in rows],
        "peak": [strict["peak"][row.name] for row in rows],
    }
    return {
        column: {
            row.label: None if share is None else share / 100 for row, share in zip(rows, shares, strict=True)
        }
        for column, shares in percent.items()
    }

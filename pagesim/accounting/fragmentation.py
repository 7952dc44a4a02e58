"""Fragmentation: the entries of the ledger in the field's words, and what share of the cache each one takes.

* **used**: slots that hold a token's keys and values.
* **reserved**: slots that a request holds and that its tokens still to come will fill.
* **internal fragmentation**: slots that a request holds and that no token will ever fill. Its parts are
  *unused reservation* (the output was guessed too long), *rounding* (to a block or to a power of two) and, of
  a hybrid cache, *padding* (a block has the bytes of the largest KV group's).
* **external fragmentation**: free slots at a moment at which the request at the head of the queue would fit
  into all that is free, and the allocator cannot place it.
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
"""What tables call the entries of the ledger, in the order of `pagesim.accounting.metrics.STRICT_ENTRIES`."""

INTERNAL = ("unused_reservation", "rounding", "padding")
"""The entries of the ledger that are internal fragmentation."""


class Category(NamedTuple):
    """A row of a table about memory.

    Attributes:
        name: what files call it: an entry of the ledger, or ``internal_fragmentation``.
        label: what tables call it.
        entries: the entries of the ledger that it sums.
        is_part: whether it is a part of internal fragmentation, whose row counts it already.
    """

    name: str
    label: str
    entries: tuple[str, ...]
    is_part: bool = False

    @property
    def indented(self) -> str:
        """The label, two spaces further in if it is a part."""
        return f"  {self.label}" if self.is_part else self.label

    def share(self, shares: Mapping[str, float | None]) -> float | None:
        """Return the sum over its entries, 0 for one that is absent; None if one is None.

        Args:
            shares: of the capacity, by entry of the ledger.
        """
        total = 0.0
        for entry in self.entries:
            share = shares.get(entry, 0.0)
            if share is None:
                return None
            total += share
        return total


def categories(entries: Iterable[str]) -> list[Category]:
    """Return the rows of a table about memory that has some entries of the ledger, in the order of its rows.

    Rows that are no parts share the entries out among them: their shares of the capacity add up to 1.
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
    """Return shares of the capacity by column, by the rows' labels; None where nothing ran.

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

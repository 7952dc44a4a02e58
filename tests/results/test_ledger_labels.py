"""Every entry that a ledger can have can be drawn."""

from __future__ import annotations

from pagesim.accounting.metrics import VIEWS
from pagesim.results.plots import COLOURS, LABELS


def test_every_entry_has_a_colour_of_its_own_and_a_label() -> None:
    strict = VIEWS["strict"]
    assert set(strict) <= set(COLOURS) & set(LABELS)
    assert len({COLOURS[entry] for entry in strict}) == len(strict)

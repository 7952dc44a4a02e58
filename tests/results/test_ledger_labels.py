"""Every entry that a ledger can have can be drawn."""

from __future__ import annotations

from pagesim.accounting.metrics import VIEWS
from pagesim.results.style import PARTS


def test_every_entry_has_a_colour_of_its_own_and_a_label() -> None:
    strict = VIEWS["strict"]
    assert set(strict) <= set(PARTS)
    assert len({PARTS[entry].colour for entry in strict}) == len(strict)
    assert len({PARTS[entry].label for entry in strict}) == len(strict)

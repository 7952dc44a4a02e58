"""Decode attention in whole ticks: lines over the context, computed once per batch size."""

from __future__ import annotations

from bisect import bisect_right

from pagesim.costs.table import Table
from pagesim.sim.clock import to_ticks

TickLine = tuple[int, int, int | None]
"""Ticks, ticks per token of context, and the largest mean context for which they hold (None: any)."""


class TickLines:
    """A term of decode attention in ticks.

    Args:
        term: seconds over sequences and their mean context.
    """

    __slots__ = ("_knots", "_known", "_term")

    def __init__(self, term: Table) -> None:
        self._term = term
        self._knots = term.knots[1]
        self._known: dict[int, list[TickLine]] = {}

    def __call__(self, sequences: int, context: int) -> TickLine:
        """Return the ticks of decoding ``sequences`` that hold ``context`` tokens in total."""
        lines = self._known.get(sequences)
        if lines is None:
            lines = self._known[sequences] = [
                (to_ticks(seconds), to_ticks(unit_s / sequences), until)
                for seconds, unit_s, until in self._term.lines(sequences)
            ]
        ticks, a_token, until = lines[min(bisect_right(self._knots, context // sequences), len(lines) - 1)]
        return ticks + a_token * context, a_token, until

"""Decode attention in whole ticks: lines over the context, worked out once a batch."""

from __future__ import annotations

from bisect import bisect_right

from pagesim.costs.profiles import Decode, DecodeTable
from pagesim.sim.clock import to_ticks

TickLine = tuple[int, int, int | None]
"""Ticks, ticks a token of context, and until which mean context these hold."""


class TickLines:
    """A term of decode attention in ticks.

    Args:
        term: in seconds.
    """

    __slots__ = ("_knots", "_known", "_term")

    def __init__(self, term: Decode) -> None:
        self._term = term
        self._knots = term.contexts if isinstance(term, DecodeTable) else None
        self._known: dict[int, list[TickLine]] = {}

    def __call__(self, sequences: int, context: int) -> TickLine:
        """Return what a batch of sequences takes that hold so many tokens together."""
        if self._knots is None:
            seconds, context_s, until = self._term.line(sequences, context)
            a_token = to_ticks(context_s)
            return to_ticks(seconds) + a_token * context, a_token, until
        lines = self._known.get(sequences)
        if lines is None:
            lines = self._known[sequences] = self._of(sequences)
        ticks, a_token, until = lines[bisect_right(self._knots, context // sequences)]
        return ticks + a_token * context, a_token, until

    def _of(self, sequences: int) -> list[TickLine]:
        assert isinstance(self._term, DecodeTable)
        return [
            (to_ticks(seconds), to_ticks(context_s), until)
            for seconds, context_s, until in self._term.lines(sequences)
        ]

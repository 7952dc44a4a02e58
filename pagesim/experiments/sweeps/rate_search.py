"""RateSearch: a bracket around the highest value that keeps a goal, narrowed by doubling and bisection."""

from __future__ import annotations

import math

FOUND, NEVER, ALWAYS = "found", "fails at the lowest", "holds at the highest"
"""Verdicts of a search on a policy; the last two are followed by the name of what was searched for."""


class RateSearch:
    """The rates, or numbers of outstanding requests, between which a policy's capacity lies.

    Args:
        lowest: first value to try.
        highest: upper bound of the doubling.
        tolerance: largest difference of the bracket's ends, relative to the lower one, to stop at.
        whole: whether values are whole numbers; the search then also stops at neighbouring numbers.
    """

    def __init__(self, lowest: float, highest: float, tolerance: float, *, whole: bool = False) -> None:
        self.lowest, self.highest, self.tolerance = lowest, highest, tolerance
        self.whole = whole
        self.holds: float | None = None
        self.fails: float | None = None

    def next(self) -> float | None:
        """Return the next value to try; None if the search has finished."""
        if self.fails is None:
            if self.holds is None:
                return self.lowest
            return min(2 * self.holds, self.highest) if self.holds < self.highest else None
        if self.holds is None or self.fails <= self.holds * (1 + self.tolerance):
            return None
        middle = math.sqrt(self.holds * self.fails)
        if self.whole:
            return max(int(self.holds) + 1, int(middle)) if self.fails - self.holds > 1 else None
        # Six digits, so that a rate is easy to type; tolerances are coarser.
        return float(f"{middle:.6g}")

    def learn(self, value: float, holds: bool) -> None:
        """Record whether the goal held at a value."""
        if holds:
            self.holds = value
        else:
            self.fails = value

    def left(self) -> int:
        """Return an estimate of how many values remain to be tried."""
        if self.next() is None:
            return 0
        if self.fails is None or self.holds is None:
            doublings = math.log2(self.highest / (self.holds or self.lowest)) / 2
            return 1 + math.ceil(doublings + math.log2(math.log(2) / math.log1p(self.tolerance)))
        return math.ceil(math.log2(math.log(self.fails / self.holds) / math.log1p(self.tolerance)))

    @property
    def verdict(self) -> str:
        """Verdict of the search."""
        return NEVER if self.holds is None else ALWAYS if self.fails is None else FOUND

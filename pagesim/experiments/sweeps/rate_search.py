"""RateSearch: values between which the most that keeps a goal lies, narrowed by doubling and bisection."""

from __future__ import annotations

import math

FOUND, NEVER, ALWAYS = "found", "fails at the lowest", "holds at the highest"
"""What a search can say of a policy; the last two with what was searched for."""


class RateSearch:
    """The rates, or the numbers of outstanding requests, between which a policy's capacity lies.

    Args:
        lowest: the first value.
        highest: the last value when doubling.
        tolerance: the bracket is narrow enough when its ends are this much apart, relative to the lower one.
        whole: whether values are whole numbers; neighbours are near enough.
    """

    def __init__(self, lowest: float, highest: float, tolerance: float, *, whole: bool = False) -> None:
        self.lowest, self.highest, self.tolerance = lowest, highest, tolerance
        self.whole = whole
        self.holds: float | None = None
        self.fails: float | None = None

    def next(self) -> float | None:
        """Return the next value to try; None when the search is over."""
        if self.fails is None:
            if self.holds is None:
                return self.lowest
            return min(2 * self.holds, self.highest) if self.holds < self.highest else None
        if self.holds is None or self.fails <= self.holds * (1 + self.tolerance):
            return None
        middle = math.sqrt(self.holds * self.fails)
        if self.whole:
            return max(int(self.holds) + 1, int(middle)) if self.fails - self.holds > 1 else None
        # Six digits, so that a rate can be typed; tolerances are coarser.
        return float(f"{middle:.6g}")

    def learn(self, value: float, holds: bool) -> None:
        """Take the outcome of a value that was tried."""
        if holds:
            self.holds = value
        else:
            self.fails = value

    def left(self) -> int:
        """Return about how many values are still to be tried."""
        if self.next() is None:
            return 0
        if self.fails is None or self.holds is None:
            doublings = math.log2(self.highest / (self.holds or self.lowest)) / 2
            return 1 + math.ceil(doublings + math.log2(math.log(2) / math.log1p(self.tolerance)))
        return math.ceil(math.log2(math.log(self.fails / self.holds) / math.log1p(self.tolerance)))

    @property
    def verdict(self) -> str:
        """What the search says."""
        return NEVER if self.holds is None else ALWAYS if self.fails is None else FOUND

"""Sums: seconds of many operators over one size, as a few knots that never fall."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from pagesim.costs.operators.table_rows import Floats, Ints
from pagesim.costs.profiles.curves import risen

SIZES = tuple(
    sorted(
        {
            *range(1, 18),
            *(16 * each + more for each in range(2, 17) for more in (0, 1) if each <= 8 or each % 2 == 0),
            *(256 * each + more for each in range(2, 18) for more in (0, 1)),
            *(8192, 16384, 32768),
        }
    )
)
"""Sizes at which products were measured: with a size there is the next, which kernels do not like."""


class Knots(NamedTuple):
    """Seconds over a size, straight between knots.

    Attributes:
        at: sizes, rising.
        seconds: of each, never falling.
    """

    at: tuple[int, ...]
    seconds: tuple[float, ...]

    def __call__(self, size: float) -> float:
        """Return the seconds of a size: the first's below the first, along the last two beyond the last."""
        if len(self.at) > 1 and size > self.at[-1]:
            slope = (self.seconds[-1] - self.seconds[-2]) / (self.at[-1] - self.at[-2])
            return self.seconds[-1] + slope * (size - self.at[-1])
        return float(np.interp(size, self.at, self.seconds))


def knots(seconds: Callable[[int], float], sizes: Sequence[int] = SIZES, near: float = 0.002) -> Knots:
    """Return a function's values at some sizes as few knots that never fall.

    Args:
        seconds: of a size.
        sizes: rising.
        near: a knot is left out where the line between its neighbours is as near, relatively.
    """
    at = np.array(sizes, np.int64)
    values = risen(np.array([seconds(size) for size in sizes]))
    kept = _needed(at, values, near)
    # Knots that are kept are on a function that never falls; rounding keeps that.
    return Knots(tuple(int(at[each]) for each in kept), tuple(float(f"{values[each]:.5g}") for each in kept))


def _needed(at: Ints, values: Floats, near: float) -> list[int]:
    """Return which knots are needed, the ends and all that a line between others would miss."""
    kept = [0]
    start = 0
    while start < len(at) - 1:
        end = start + 1
        for further in range(start + 2, len(at)):
            inner = slice(start + 1, further)
            line = np.interp(at[inner], [at[start], at[further]], [values[start], values[further]])
            if (np.abs(line / values[inner] - 1) > near).any():
                break
            end = further
        kept.append(end)
        start = end
    return kept

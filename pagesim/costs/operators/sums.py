"""Sums: seconds of many operators over one size, as a few knots that never fall."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from pagesim.costs.operators.rows import Floats, Ints

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


def risen(seconds: Floats) -> Floats:
    """Return seconds that never fall along the last axis, as near as can be in their logarithms.

    Where a smaller size takes longer than a larger one, both take their geometric mean (pool adjacent
    violators).
    """
    if seconds.ndim > 1:
        return np.stack([risen(row) for row in seconds])
    means: list[float] = []
    counts: list[int] = []
    for value in np.log(np.maximum(seconds, 1e-12)).tolist():
        means.append(value)
        counts.append(1)
        while len(means) > 1 and means[-2] > means[-1]:
            count = counts[-2] + counts[-1]
            mean = (means[-2] * counts[-2] + means[-1] * counts[-1]) / count
            means[-2:], counts[-2:] = [mean], [count]
    found: Floats = np.exp(np.repeat(means, counts))
    return found


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

"""Simulated time in whole picoseconds, so that fast-forwarding and stepping agree to the bit."""

from __future__ import annotations

import struct
from math import sqrt
from typing import Final

import numpy as np
import numpy.typing as npt

TICKS_PER_SECOND: Final = 10**12
"""Costs are rounded to this grid once, when a cost model is built; after that, time is exact arithmetic."""

LONGEST_S = 4.6e6
"""Longest simulated time in seconds, about 53 days: its ticks fit the 62 bits of compiled integers."""

BEYOND_THE_CLOCK = (OverflowError, struct.error)
"""Exceptions raised when ticks that do not fit such an integer are stored."""


def to_ticks(seconds: float) -> int:
    """Return the nearest number of ticks; ``seconds`` must be finite."""
    return round(seconds * TICKS_PER_SECOND)


def to_tick_column(seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return ticks for a column of seconds, ``[N]``, each rounded to the nearest."""
    # A float64 product of seconds × 10¹² may be off by one tick beyond 9,000 s; splitting keeps every digit.
    whole = np.floor(seconds)
    fraction = np.rint((seconds - whole) * TICKS_PER_SECOND)
    return whole.astype(np.int64) * TICKS_PER_SECOND + fraction.astype(np.int64)


def to_seconds(ticks: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return seconds for a column of ticks, ``[N]``."""
    return ticks / TICKS_PER_SECOND


def steps_before(first: int, increment: int, span: int) -> int:
    """Return how many consecutive steps start strictly less than ``span`` ticks from now.

    Step ``j`` lasts ``first + j·increment`` ticks, so it starts at ``j·first + increment·j(j−1)/2``. The
    root of that quadratic is estimated in floating point and then corrected by integer tests.
    """
    if span <= 0:
        return 0
    if increment == 0:
        return -(-span // first)
    # 2X / (p + sqrt(p² + 2qX)) with p = first − increment/2 does not cancel when the increment is small.
    p = first - increment / 2
    root = 2 * span / (p + sqrt(p * p + 2.0 * increment * span))
    steps = int(root)
    if 1e-4 < root - steps < 0.9999:
        return steps + 1  # the root is good to 12 digits: only close to an integer is an exact test needed
    while steps > 0 and span_of(first, increment, steps) >= span:
        steps -= 1
    while span_of(first, increment, steps) < span:
        steps += 1
    return steps


def span_of(first: int, increment: int, steps: int) -> int:
    """Return the total ticks of ``steps`` steps, of which step ``j`` lasts ``first + j·increment``."""
    return steps * first + increment * (steps * (steps - 1) // 2)

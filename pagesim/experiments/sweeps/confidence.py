"""Confidence: how far a mean over a few seeds may be off."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import numpy.typing as npt

LEVEL = 0.95


def mean_and_margin(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return the mean of what is not NaN, and half the width of its 95 % confidence interval (Student's t).

    Args:
        values: one a seed, ``[N]``.

    Returns:
        Both NaN where there is no value, the margin also where there is one.
    """
    values = values[~np.isnan(values)]
    if not len(values):
        return math.nan, math.nan
    if len(values) == 1:
        return float(values[0]), math.nan
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    return float(values.mean()), student_t(len(values) - 1) * error


@cache
def student_t(degrees: int) -> float:
    """Return t such that a variable with so many degrees of freedom lies in −t … t with 95 % probability.

    Bisection on the closed form for whole degrees (Abramowitz and Stegun 26.7.3 and 26.7.4), which saves the
    simulator from needing SciPy.
    """
    low, high = 0.0, math.pi / 2
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if _within(middle, degrees) < LEVEL else (low, middle)
    return math.tan(low) * math.sqrt(degrees)


def _within(angle: float, degrees: int) -> float:
    """Return the probability of −t … t with t = √degrees · tan(angle)."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = degrees % 2
    total, term = 0.0, cosine if odd else 1.0
    for k in range(1 + odd, degrees, 2):
        total += term
        term *= cosine * cosine * k / (k + 1)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total

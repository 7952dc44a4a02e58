"""Curves: seconds over one size, straight between knots."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from pagesim.errors import PagesimError

Floats = npt.NDArray[np.float64]

MOST_KNOTS = 32
"""More than enough for anything that a machine does; fewer where fewer sizes were measured."""


def _finite(value: float) -> float:
    if not 0 <= value < 1e6:
        raise ValueError(f"is {value}; seconds from 0 to a million are needed")
    return value


Seconds = Annotated[float, AfterValidator(_finite)]


class Strict(BaseModel):
    """Data from a file: every field checked, none too many, nothing changed afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Curve(Strict):
    """Seconds as a function of a whole number, never falling.

    Below the first knot a size costs what the first does, and nothing costs nothing; beyond the last the last
    slope goes on.

    Attributes:
        at: sizes of the knots, rising.
        seconds: at each knot, never falling.
    """

    at: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1, strict=False)]
    seconds: Annotated[tuple[Seconds, ...], Field(min_length=1, strict=False)]

    @model_validator(mode="after")
    def _check(self) -> Curve:
        if len(self.at) != len(self.seconds):
            raise ValueError(f"has {len(self.at)} sizes and {len(self.seconds)} times")
        if any(a >= b for a, b in pairwise(self.at)):
            raise ValueError("its sizes must rise")
        if any(a > b for a, b in pairwise(self.seconds)):
            raise ValueError("its times must not fall")
        return self

    @property
    def most(self) -> int:
        """The largest size that was measured."""
        return self.at[-1]

    def __call__(self, size: int) -> float:
        """Return the seconds that a size takes."""
        if size <= 0:
            return 0.0
        at, seconds = self.at, self.seconds
        if size <= at[0] or len(at) == 1:
            return seconds[0]
        right = min(bisect_right(at, size), len(at) - 1)
        slope = (seconds[right] - seconds[right - 1]) / (at[right] - at[right - 1])
        return seconds[right - 1] + slope * (size - at[right - 1])

    def scaled(self, factors: Iterable[float]) -> Curve:
        """Return the curve with each knot's seconds multiplied, kept from falling."""
        times = [seconds * factor for seconds, factor in zip(self.seconds, factors, strict=True)]
        return Curve(at=self.at, seconds=tuple(np.maximum.accumulate(times).tolist()))


def fit_curve(sizes: Sequence[int], seconds: Sequence[float]) -> Curve:
    """Fit a curve to measurements: least squares of relative errors, never falling.

    Args:
        sizes: measured, above 0, in any order, repeated or not.
        seconds: what each took, above 0.

    Raises:
        PagesimError: nothing was measured, or scipy is not installed.
    """
    if not len(sizes):
        raise PagesimError("no measurement to fit a curve to")
    x, y = np.asarray(sizes, np.int64), np.asarray(seconds, np.float64)
    knots = some_of(np.unique(x))
    return _risen(knots, non_negative(_rises(x, knots), y))


def fit_rest(sizes: Sequence[int], parts: Sequence[float], wholes: Sequence[float]) -> Curve:
    """Fit a curve to what wholes take beyond their parts: least squares of the wholes' relative errors.

    A rest that is small beside its whole counts little, and so does one that is negative by chance.

    Args:
        sizes: measured, above 0, in any order.
        parts: seconds that are accounted for.
        wholes: what each took, above 0.

    Raises:
        PagesimError: nothing was measured, or scipy is not installed.
    """
    if not len(sizes):
        raise PagesimError("no measurement to fit a curve to")
    x, whole = np.asarray(sizes, np.int64), np.asarray(wholes, np.float64)
    knots = some_of(np.unique(x))
    return _risen(knots, non_negative(_rises(x, knots), whole, np.asarray(parts, np.float64)))


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


def _rises(x: npt.NDArray[np.int64], knots: npt.NDArray[np.int64]) -> Floats:
    """Return how much of each knot's rise over the one before counts at each size, ``[N, knots]``."""
    # Seconds at a knot are the sum of all rises up to it: rises that are not negative never fall.
    place = np.clip(np.searchsorted(knots, x, "right") - 1, 0, max(0, len(knots) - 2))
    shape = np.zeros((len(x), len(knots)))
    if len(knots) == 1:
        shape[:, 0] = 1
    else:
        share = (x - knots[place]) / (knots[place + 1] - knots[place])
        shape[np.arange(len(x)), place] = 1 - share
        shape[np.arange(len(x)), place + 1] = share
    return shape @ np.tri(len(knots))


def _risen(knots: npt.NDArray[np.int64], rises: Floats) -> Curve:
    return Curve(at=tuple(knots.tolist()), seconds=tuple(np.cumsum(rises).tolist()))


def some_of(sizes: npt.NDArray[np.int64], most: int = MOST_KNOTS) -> npt.NDArray[np.int64]:
    """Choose some of the sizes that were measured, evenly by ratio: both ends are among them.

    Args:
        sizes: rising, above 0.
        most: how many.
    """
    if len(sizes) <= most:
        return sizes
    wanted = np.geomspace(sizes[0], sizes[-1], most)
    return np.unique(sizes[np.abs(sizes[None, :] - wanted[:, None]).argmin(1)])


def non_negative(features: Floats, seconds: Floats, known: Floats | float = 0.0) -> Floats:
    """Return coefficients that are not negative, with the least squares of relative errors.

    Args:
        features: ``[N, F]``.
        seconds: measured, ``[N]``, above 0.
        known: seconds of each that are accounted for without the features, ``[N]``.
    """
    from scipy.optimize import nnls

    weighted = features / seconds[:, None]
    # Columns of like size: what a sequence costs and what a token costs differ by many orders.
    scale = np.abs(weighted).max(0)
    scale[scale == 0] = 1
    found: Any = nnls(weighted / scale, 1 - known / seconds)
    coefficients: Floats = found[0] / scale
    return coefficients

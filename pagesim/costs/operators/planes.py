"""Planes: seconds over sequences and what each of them is long, without a gap."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pagesim.costs.operators.grids import Stretch, bracket, plain
from pagesim.costs.operators.rows import Floats, Ints


@dataclass(frozen=True, slots=True)
class Plane:
    """Seconds over a number of sequences and a length, linear in both (the length stretched).

    Below the first of an axis it is the first; beyond the last it goes on as between the last two.

    Attributes:
        batch: sequences, rising, ``[B]``.
        length: tokens of each, rising, ``[L]``.
        seconds: ``[B, L]``.
        stretch: of lengths.
    """

    batch: Ints
    length: Ints
    seconds: Floats
    stretch: Stretch = plain

    def __call__(self, batch: float, length: float) -> float:
        """Return the seconds of so many sequences of such a length."""
        low, high, share = bracket(self.batch, batch)
        first = self.along(low, length)
        return first + share * (self.along(high, length) - first) if share else first

    def along(self, at: int, length: float) -> float:
        """Return the seconds of the batch at a place on its axis."""
        low, high, share = bracket(self.length, length, self.stretch)
        first = float(self.seconds[at, low])
        return first + share * (float(self.seconds[at, high]) - first)

    def scaled(self, factor: float) -> Plane:
        """Return the plane with seconds multiplied."""
        return Plane(self.batch, self.length, self.seconds * factor, self.stretch)


def line_on(seconds: Floats, length: Ints) -> Floats:
    """Return rows ``[B, L]`` with what is missing between or after what is known, along each row.

    Between it is a line; after the last the last two go on; before the first it is the first.
    """
    found = seconds.copy()
    for row in found:
        known = np.flatnonzero(np.isfinite(row))
        if not len(known) or len(known) == len(row):
            continue
        gaps = np.flatnonzero(~np.isfinite(row))
        row[gaps] = np.interp(length[gaps], length[known], row[known])
        last = int(known[-1])
        if len(known) > 1:
            before = int(known[-2])
            slope = max(0.0, (row[last] - row[before]) / (length[last] - length[before]))
            row[last + 1 :] = row[last] + slope * (length[last + 1 :] - length[last])
    return found

"""Planes: seconds over the number of sequences and their length, without gaps."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pagesim.costs.operators.tables import Axes, Floats, Ints
from pagesim.costs.prompts import whole_prompts
from pagesim.costs.table import Table, line

BENT = 1.5
"""Power of the length in which prompt seconds are nearly linear, between costs per token and per pair. On the
published tables, interpolation over the length itself is 6 % too slow on average, and over its square 4 % too
fast; this one is off by 1 %."""


class Plane(NamedTuple):
    """Seconds over a number of sequences and a length, linear in both (or in a power of the length).

    Below an axis's first size, its value is used; beyond the last, the last two are extrapolated.

    Attributes:
        batch: numbers of sequences, rising, ``[B]``.
        length: tokens per sequence, rising, ``[L]``.
        seconds: seconds at each combination, ``[B, L]``.
        power: power of the length in which seconds are linear.
        most: largest measured number of tokens of all sequences together.
    """

    batch: Ints
    length: Ints
    seconds: Floats
    power: float = 1.0
    most: int = 0

    @classmethod
    def decoding(cls, axes: Axes, seconds: Floats) -> Plane:
        """Return decode measurements over sequences and context, with gaps filled along the context."""
        batch, length, known = _measured(axes, seconds)
        return cls(batch, length, gapless(length, known))

    @classmethod
    def prompting(cls, axes: Axes, seconds: Floats) -> Plane:
        """Return prompt measurements over their number and length.

        Unmeasured batches of many long prompts scale with the number of prompts.
        """
        batch, length, known = _measured(axes, seconds)
        most = int(np.multiply.outer(batch, length)[np.isfinite(known)].max())
        return cls(batch, length, gapless(batch, known.T, in_proportion=True).T, BENT, most)

    def at(self, batch: Ints, length: Ints) -> Floats:
        """Interpolate the seconds at other numbers of sequences and other lengths, ``[B, L]``."""
        by_length = line(self.length, self.seconds, length, power=self.power)
        return line(self.batch, by_length.T, batch).T

    def scaled(self, factor: Floats | float) -> Plane:
        """Return the plane with seconds multiplied by a number, or by an array ``[B, L]``."""
        return self._replace(seconds=self.seconds * factor)

    def plus(self, other: Plane) -> Plane:
        """Return the sum of two planes, on the sizes of both."""
        batch, length = np.union1d(self.batch, other.batch), np.union1d(self.length, other.length)
        seconds = self.at(batch, length) + other.at(batch, length)
        return Plane(batch, length, seconds, self.power, min(self.most, other.most))

    def decode_table(self) -> Table:
        """Return the plane as a profile's decode table, never falling with the context."""
        axes = {"sequences": tuple(self.batch.tolist()), "context": tuple(self.length.tolist())}
        return Table(axes=axes, seconds=self.seconds.tolist()).rising("context").rounded(4)

    def prefill_table(self) -> Table:
        """Return the plane as a profile's prefill table, never below the time of the shortest prompt."""
        axes = {"prompts": tuple(self.batch.tolist()), "length": tuple(self.length.tolist())}
        prompts = Table(axes=axes, seconds=self.seconds.tolist()).rising("length").array
        return whole_prompts(self.length, self.batch, prompts.T, prompts[0, 0]).rounded(4)


def gapless(sizes: Ints, seconds: Floats, *, in_proportion: bool = False) -> Floats:
    """Return rows ``[R, S]`` with gaps filled along each row.

    Gaps before the first known value get that value.

    Args:
        sizes: sizes of the columns, rising, ``[S]``.
        seconds: seconds ``[R, S]``, NaN where not measured; each row has at least one value.
        in_proportion: whether seconds beyond the last known one scale with the size; otherwise they follow
            the line through the last two.
    """
    found = seconds.copy()
    for row in found:
        known = np.isfinite(row)
        if known.all():
            continue
        row[~known] = line(sizes[known], row[known], sizes[~known])
        if in_proportion:
            last = int(np.flatnonzero(known)[-1])
            row[last + 1 :] = row[last] * sizes[last + 1 :] / sizes[last]
    return found


def _measured(axes: Axes, seconds: Floats) -> tuple[Ints, Ints, Floats]:
    """Return the sizes at which anything was measured, and the seconds at these."""
    known = np.isfinite(seconds)
    rows, columns = known.any(1), known.any(0)
    return axes[0][rows], axes[1][columns], seconds[rows][:, columns]

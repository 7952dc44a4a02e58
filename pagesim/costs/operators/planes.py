"""Planes: seconds over sequences and what each of them is long, without a gap."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pagesim.costs.operators.tables import Axes, Floats, Ints
from pagesim.costs.prompts import whole_prompts
from pagesim.costs.table import Table, line

BENT = 1.5
"""Prompts' seconds are nearly straight over their length to this power, between what goes with tokens and
what goes with pairs: on the published tables a line over the length itself is 6 % too slow in the mean, one
over its square 4 % too fast, this one off by 1 %."""


class Plane(NamedTuple):
    """Seconds over a number of sequences and a length, linear in both (the length to a power).

    Below the first of an axis it is the first; beyond the last it goes on as between the last two.

    Attributes:
        batch: sequences, rising, ``[B]``.
        length: tokens of each, rising, ``[L]``.
        seconds: ``[B, L]``.
        power: of lengths, over which seconds are straight.
        most: the most tokens of all sequences together that were measured.
    """

    batch: Ints
    length: Ints
    seconds: Floats
    power: float = 1.0
    most: int = 0

    @classmethod
    def decoding(cls, axes: Axes, seconds: Floats) -> Plane:
        """Return what was measured of decoding over sequences and context, gaps filled along the context."""
        batch, length, known = _measured(axes, seconds)
        return cls(batch, length, gapless(length, known))

    @classmethod
    def prompting(cls, axes: Axes, seconds: Floats) -> Plane:
        """Return what was measured of prompts over their number and length.

        Many long prompts at once are not measured: they take their share more than as many as were.
        """
        batch, length, known = _measured(axes, seconds)
        most = int(np.multiply.outer(batch, length)[np.isfinite(known)].max())
        return cls(batch, length, gapless(batch, known.T, in_proportion=True).T, BENT, most)

    def at(self, batch: Ints, length: Ints) -> Floats:
        """Return the seconds of other numbers of sequences and other lengths, ``[B, L]``."""
        by_length = line(self.length, self.seconds, length, power=self.power)
        return line(self.batch, by_length.T, batch).T

    def scaled(self, factor: Floats | float) -> Plane:
        """Return the plane with seconds multiplied by a number, or by one at each place, ``[B, L]``."""
        return self._replace(seconds=self.seconds * factor)

    def plus(self, other: Plane) -> Plane:
        """Return the sum of two planes, on the sizes of both."""
        batch, length = np.union1d(self.batch, other.batch), np.union1d(self.length, other.length)
        seconds = self.at(batch, length) + other.at(batch, length)
        return Plane(batch, length, seconds, self.power, min(self.most, other.most))

    def decode_table(self) -> Table:
        """Return the plane as a profile has it in decoding, never falling with the context."""
        axes = {"sequences": tuple(self.batch.tolist()), "context": tuple(self.length.tolist())}
        return Table(axes=axes, seconds=self.seconds.tolist()).rising("context").rounded(4)

    def prefill_table(self) -> Table:
        """Return the plane as a profile has it of prompts, which take no less than the shortest does."""
        axes = {"prompts": tuple(self.batch.tolist()), "length": tuple(self.length.tolist())}
        prompts = Table(axes=axes, seconds=self.seconds.tolist()).rising("length").array
        return whole_prompts(self.length, self.batch, prompts.T, prompts[0, 0]).rounded(4)


def gapless(sizes: Ints, seconds: Floats, *, in_proportion: bool = False) -> Floats:
    """Return rows ``[R, S]`` with what is missing between or after what is known, along each row.

    Before the first that is known it is the first.

    Args:
        sizes: of the columns, rising, ``[S]``.
        seconds: NaN where nothing was measured; each row has something.
        in_proportion: whether beyond the last that is known seconds go with the size, or else along the line
            through the last two.
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
    """Return the sizes at which anything was measured, and what was."""
    known = np.isfinite(seconds)
    rows, columns = known.any(1), known.any(0)
    return axes[0][rows], axes[1][columns], seconds[rows][:, columns]

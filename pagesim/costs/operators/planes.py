"""Planes: seconds over sequences and what each of them is long, without a gap."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pagesim.costs.operators.table_rows import Floats, Ints
from pagesim.costs.profiles.attention_tables import DecodeTable, PrefillTable
from pagesim.costs.profiles.curves import risen


@dataclass(frozen=True, slots=True)
class Plane:
    """Seconds over a number of sequences and a length, linear in both (the length to a power).

    Below the first of an axis it is the first; beyond the last it goes on as between the last two.

    Attributes:
        batch: sequences, rising, ``[B]``.
        length: tokens of each, rising, ``[L]``.
        seconds: ``[B, L]``.
        power: of lengths, over which seconds are straight.
        most: the most tokens of all sequences together that were measured; 0 where that is not kept.
    """

    batch: Ints
    length: Ints
    seconds: Floats
    power: float = 1.0
    most: int = 0

    def __call__(self, batch: float, length: float) -> float:
        """Return the seconds of so many sequences of such a length."""
        low, high, share = bracket(self.batch, batch)
        first = self.along(low, length)
        return first + share * (self.along(high, length) - first) if share else first

    def along(self, at: int, length: float) -> float:
        """Return the seconds of the batch at a place on its axis."""
        low, high, share = bracket(self.length, length, self.power)
        first = float(self.seconds[at, low])
        return first + share * (float(self.seconds[at, high]) - first)

    def scaled(self, factor: float) -> Plane:
        """Return the plane with seconds multiplied."""
        return Plane(self.batch, self.length, self.seconds * factor, self.power, self.most)

    def decode_table(self) -> DecodeTable:
        """Return the plane as a profile has it in decoding, never falling with the length."""
        return DecodeTable(
            batches=tuple(self.batch.tolist()),
            contexts=tuple(self.length.tolist()),
            seconds=_rounded(risen(self.seconds)),
        )

    def prefill_table(self) -> PrefillTable:
        """Return the plane as a profile has it of prompts; the least is what the shortest takes."""
        seconds = risen(self.seconds)
        return PrefillTable(
            lengths=tuple(self.length.tolist()),
            batches=tuple(self.batch.tolist()),
            seconds=_rounded(seconds.T),
            launch_s=float(f"{seconds[0, 0]:.4g}"),
        )


def bracket(axis: Ints, size: float, power: float = 1.0) -> tuple[int, int, float]:
    """Return the two places between which a size lies, and how far on the way it is.

    Below the first place the way is 0; beyond the last it is above 1, along the last two.

    Args:
        axis: sizes, rising.
        size: any.
        power: of sizes, over which the way is measured.
    """
    if len(axis) == 1 or size <= axis[0]:
        return 0, 0, 0.0
    right = min(int(np.searchsorted(axis, size)), len(axis) - 1)
    low, high = float(axis[right - 1]) ** power, float(axis[right]) ** power
    return right - 1, right, (float(size) ** power - low) / (high - low)


def _rounded(seconds: Floats) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(float(f"{each:.4g}") for each in row) for row in seconds.tolist())


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

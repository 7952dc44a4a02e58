"""Sums over sequences at every iteration, computed from their arrivals, growth and departures."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.int64]


def sum_changes(size: int, *changes: tuple[Column, Column]) -> Column:
    """Return running sums, ``[size]``, of (index, amount) changes; an index may be one past the end."""
    sums = np.zeros(size + 1, np.int64)
    for where, amounts in changes:
        np.add.at(sums, where, amounts)
    return np.cumsum(sums[:size])


class Stay(NamedTuple):
    """A sequence that holds memory during some consecutive iterations.

    A stay ignores sharing, which is subtracted for all sequences together.

    Attributes:
        first, last: first and last iteration, inclusive.
        base: tokens whose KV is held after an iteration, minus ``rate`` for each step of growth completed by
            then.
        final: final length of the sequence in tokens, including the last one.
        sequences: number of identical sequences, each counted with its own blocks.
        rate: tokens added per step of growth; 0 while the length is constant.
    """

    first: int
    last: int
    base: int
    final: int
    sequences: int
    rate: int


class Stays:
    """Sums over sequences at each of some consecutive iterations.

    Args:
        growth: steps of growth completed at each iteration, ``[I]``, non-decreasing.
        stays: rows of `Stay`, ``[S, 6]``; iterations are relative to the first one.
    """

    def __init__(self, growth: Column, stays: Column) -> None:
        self.growth = growth
        self._stays = stays
        columns = np.ascontiguousarray(stays.T)
        self.first, self.last, self.base, self.final, self.sequences, self.rate = columns
        self.start = self.base + growth[self.first] * self.rate
        self.end = self.base + growth[self.last] * self.rate

    def only(self, chosen: npt.NDArray[np.bool_]) -> Stays:
        """Return the stays selected by a mask, ``[S]``."""
        return Stays(self.growth, self._stays[chosen])

    def present(self, each: Column) -> Column:
        """Return the sum of a per-sequence amount over the sequences present, ``[I]``."""
        weights = each * self.sequences
        return sum_changes(len(self.growth), (self.first, weights), (self.last + 1, -weights))

    def length(self) -> Column:
        """Return the tokens of all sequences, ``[I]``."""
        return self.present(self.base) + self.growth * self.present(self.rate)

    def own_length(self) -> Column:
        """Return the tokens of all sequences, ``[I]``, without those beyond ``final``.

        A static batch keeps generating for a row that already has all its own tokens.
        """
        length = self.length()
        if (self.end > self.final).any():
            length -= self.total_from(self.final + 1, self.base - self.final)
        return length

    def blocks(self, size: int) -> Column:
        """Return the blocks that all sequences need for their tokens, ``[I]``."""
        return self.length() if size == 1 else self.stairs(1, size, ground=1)

    def rounding(self, size: int) -> Column:
        """Return the slots of final blocks that no token will fill, from when each block is used, ``[I]``."""
        last_block = -(-self.final // size)
        return self.from_length((last_block - 1) * size + 1, last_block * size - self.final)

    def from_length(self, length: Column, amounts: Column) -> Column:
        """Return the sum of amounts, each counted once its sequence has reached ``length``, ``[I]``."""
        turn = np.maximum(self._first_at(length, self.base, self.rate), self.first)
        turn = np.where(self.end >= length, turn, self.last + 1)
        amounts = amounts * self.sequences
        return sum_changes(len(self.growth), (turn, amounts), (self.last + 1, -amounts))

    def total_from(self, length: Column, base: Column) -> Column:
        """Return the sum of ``base + rate * growth`` over sequences that have reached ``length``, ``[I]``."""
        return self.from_length(length, base) + self.growth * self.from_length(length, self.rate)

    def stairs(self, foot: Column | int, width: int, rise: int = 1, per: int = 1, ground: int = 0) -> Column:
        """Return the sum of ``ground + n * rise // per`` over the sequences, ``[I]``.

        Args:
            foot: length in tokens at which the steps begin.
            width: tokens per step; n is the number of whole widths between the foot and a sequence's length.
            rise: numerator of the rise per step.
            per: denominator of the rise per step.
            ground: amount below the first step.
        """
        start = np.maximum(self.start - foot, 0) // width
        end = np.maximum(self.end - foot, 0) // width
        counts = end - start
        which = np.repeat(np.arange(len(counts)), counts)
        nth = np.arange(1, len(which) + 1) + np.repeat(start - (np.cumsum(counts) - counts), counts)
        feet = foot if isinstance(foot, int) else foot[which]
        at = self._first_at(feet + nth * width, self.base[which], self.rate[which])
        climbed = nth * rise // per - (nth - 1) * rise // per
        return sum_changes(
            len(self.growth),
            (self.first, (ground + start * rise // per) * self.sequences),
            (at, climbed * self.sequences[which]),
            (self.last + 1, -(ground + end * rise // per) * self.sequences),
        )

    def _first_at(self, length: Column, base: Column, rate: Column) -> Column:
        """Return the iterations at which sequences first reach a length, assuming that they do."""
        found: Column = np.searchsorted(self.growth, -(-(length - base) // np.maximum(rate, 1)))
        return found

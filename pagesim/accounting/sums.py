"""Sums over sequences at every iteration, from what changes as each comes, grows and goes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.int64]


def sum_changes(size: int, *changes: tuple[Column, Column]) -> Column:
    """Return the running sum, ``[size]``, of amounts that change at given indices (some one past the end)."""
    sums = np.zeros(size + 1, np.int64)
    for where, amounts in changes:
        np.add.at(sums, where, amounts)
    return np.cumsum(sums[:size])


class Stay(NamedTuple):
    """A sequence that holds memory from one iteration to another, both included.

    A stay knows nothing of sharing: what sequences share is taken off for all of them together.

    Attributes:
        first, last: iterations.
        base: tokens whose KV is held once an iteration has run, less ``rate`` for each step of growth taken
            by then.
        final: tokens that the sequence will have in the end, the last one counted.
        sequences: how many there are alike, each with blocks of its own as far as the stay knows.
        rate: tokens that a step of growth adds; 0 where the length rests.
    """

    first: int
    last: int
    base: int
    final: int
    sequences: int
    rate: int


class Stays:
    """Sums over sequences in each of some consecutive iterations.

    Args:
        growth: steps of growth taken at each iteration, ``[I]``, never falling.
        stays: rows of `Stay`, ``[S, 6]``; iterations count from the first of these.
    """

    def __init__(self, growth: Column, stays: Column) -> None:
        self.growth = growth
        self._stays = stays
        columns = np.ascontiguousarray(stays.T)
        self.first, self.last, self.base, self.final, self.sequences, self.rate = columns
        self.start = self.base + growth[self.first] * self.rate
        self.end = self.base + growth[self.last] * self.rate

    def only(self, chosen: npt.NDArray[np.bool_]) -> Stays:
        """Return those that are chosen, ``[S]``."""
        return Stays(self.growth, self._stays[chosen])

    def present(self, each: Column) -> Column:
        """Return the sum over the sequences of what each has as long as it is there, ``[I]``."""
        weights = each * self.sequences
        return sum_changes(len(self.growth), (self.first, weights), (self.last + 1, -weights))

    def length(self) -> Column:
        """Return the tokens of all, ``[I]``."""
        return self.present(self.base) + self.growth * self.present(self.rate)

    def own_length(self) -> Column:
        """Return the tokens of all, ``[I]``, without those beyond ``final``.

        A static batch goes on generating for a row that has all its own tokens.
        """
        length = self.length()
        if (self.end > self.final).any():
            length -= self.total_from(self.final + 1, self.base - self.final)
        return length

    def blocks(self, size: int) -> Column:
        """Return the blocks that all need for their tokens, ``[I]``."""
        return self.length() if size == 1 else self.stairs(1, size, ground=1)

    def rounding(self, size: int) -> Column:
        """Return the slots of last blocks that no token will fill, from when each is opened, ``[I]``."""
        last_block = -(-self.final // size)
        return self.from_length((last_block - 1) * size + 1, last_block * size - self.final)

    def from_length(self, length: Column, amounts: Column) -> Column:
        """Return the sum of amounts, each from when its sequence is so long, ``[I]``."""
        turn = np.maximum(self._first_at(length, self.base, self.rate), self.first)
        turn = np.where(self.end >= length, turn, self.last + 1)
        amounts = amounts * self.sequences
        return sum_changes(len(self.growth), (turn, amounts), (self.last + 1, -amounts))

    def total_from(self, length: Column, base: Column) -> Column:
        """Return the sum of ``base + rate * growth``, each from when its sequence is so long, ``[I]``."""
        return self.from_length(length, base) + self.growth * self.from_length(length, self.rate)

    def stairs(self, foot: Column | int, width: int, rise: int = 1, per: int = 1, ground: int = 0) -> Column:
        """Return the sum of ``ground + n * rise // per`` over the sequences, ``[I]``.

        Args:
            foot: a length.
            width: tokens; a sequence has n whole widths from the foot to its length.
            rise: numerator.
            per: denominator.
            ground: what there is of every sequence.
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
        """Return the first iterations at which sequences are so long, if they ever are."""
        found: Column = np.searchsorted(self.growth, -(-(length - base) // np.maximum(rate, 1)))
        return found

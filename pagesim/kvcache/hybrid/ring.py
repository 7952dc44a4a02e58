"""Rings: what decoding sequences take or give back at a step, which comes again after a period."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from pagesim.kvcache.groups import passing_steps
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Ring:
    """Blocks by the step, modulo a period.

    Attributes:
        counts: of each step of the period, ``[period]``.
        period: steps.
        whole: the blocks of all steps of the period.
    """

    __slots__ = ("counts", "period", "whole")

    def __init__(self, period: int) -> None:
        self.counts = [0] * period
        self.period = period
        self.whole = 0

    def add(self, base: int, block_size: int, growth: int, blocks: int, beside: Ring | None = None) -> None:
        """Count so many blocks at each step at which a sequence opens a block.

        Args:
            base: it has ``base + growth · steps`` tokens.
            block_size: tokens a block; it divides the period.
            growth: tokens a step.
            blocks: fewer than 0 for a sequence that does so no longer.
            beside: a ring of the same period in which they are counted, too.
        """
        counts, period = self.counts, self.period
        if growth == 1 and block_size == period:
            step = (1 - base) % block_size  # see `opening_step`
            counts[step] += blocks
            self.whole += blocks
            if beside is not None:
                beside.counts[step] += blocks
                beside.whole += blocks
            return
        if beside is not None:
            beside.add(base, block_size, growth, blocks)
        for step in passing_steps((base - 1) % block_size, block_size, growth, period):
            counts[step] += blocks
        self.whole += blocks * growth * period // block_size

    def total(self, after: int, steps: int) -> int:
        """Return the blocks of so many steps after a step."""
        counts, period = self.counts, self.period
        first = (after + 1) % period
        if steps == 1:
            return counts[first]
        rounds, rest = divmod(steps, period)
        end = first + rest
        blocks = sum(counts[first:end]) + rounds * self.whole
        return blocks + sum(counts[: end - period]) if end > period else blocks

    def in_turn(self, after: int) -> list[int]:
        """Return the blocks of a period that begins after a step, ``[period]``."""
        first = (after + 1) % self.period
        return self.counts[first:] + self.counts[:first]


def lasts(changes: Sequence[int], later: int, steps: int, room: int) -> int:
    """Return how many leading steps keep a sum of changes within some room.

    Args:
        changes: of each step of the first period, ``[period]``, summed up here.
        later: what the sum is higher by in each further period, at the same step.
        steps: as many as are asked for.
        room: what the sum may be.
    """
    sums = list(accumulate(changes))
    most, period = max(sums), len(sums)
    rounds = 0
    if most <= room:
        if later <= 0 or steps <= period:
            return steps
        rounds = (room - most) // later + 1
        room -= rounds * later
    for step, reached in enumerate(sums):
        if reached > room:
            return min(steps, rounds * period + step)
    raise AssertionError("the step that has no room left is one of the period after the last that has it all")

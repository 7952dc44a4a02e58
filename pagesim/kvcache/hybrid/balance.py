"""Balance: what decoding sequences give back and take at a step, one after another."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate

from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Balance:
    """Blocks that cannot be found: those that come and those that go, in the order of the sequences.

    Attributes:
        total: of all of them, by the end.
    """

    __slots__ = ("_blocks", "_least", "_order", "total")

    def __init__(self) -> None:
        self._order: list[int] = []
        self._blocks: list[int] = []
        self._least: int | None = 0  # None where it is not known
        self.total = 0

    def add(self, order: int, blocks: int) -> None:
        """Count blocks that come, or that go (fewer than 0).

        Args:
            order: of what comes and goes.
            blocks: how many.
        """
        place = bisect_left(self._order, order)
        self._order.insert(place, order)
        self._blocks.insert(place, blocks)
        self._least = None
        self.total += blocks

    def remove(self, order: int) -> None:
        """Count the blocks no longer that come or go in this place of the order."""
        place = bisect_left(self._order, order)
        del self._order[place]
        self.total -= self._blocks.pop(place)
        self._least = None

    @property
    def least(self) -> int:
        """The lowest that the balance gets on the way, at most 0."""
        if self._least is None:
            self._least = min(0, *accumulate(self._blocks)) if self._blocks else 0
        return self._least

    def least_with(self, others: Iterable[tuple[int, int]]) -> int:
        """Return the same with others that come or go only once, as (order, blocks)."""
        blocks = [blocks for _, blocks in sorted([*zip(self._order, self._blocks, strict=True), *others])]
        return min(0, *accumulate(blocks)) if blocks else 0

    def copy(self) -> Balance:
        """Return the balance as it is now."""
        balance = Balance()
        balance._order, balance._blocks = list(self._order), list(self._blocks)
        balance._least, balance.total = self._least, self.total
        return balance

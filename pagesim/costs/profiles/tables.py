"""Terms as tables: seconds over sequences and their length, as they were measured, and the lines between."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, PrivateAttr, model_validator

from pagesim.costs.profiles.attention import Line
from pagesim.costs.profiles.curves import Curve, Seconds, Strict

Sizes = Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1, strict=False)]
Row = Annotated[tuple[Seconds, ...], Field(min_length=1, strict=False)]
Grid = Annotated[tuple[Row, ...], Field(min_length=1, strict=False)]

BENT = 1.5
"""Prompts' seconds are nearly straight over their length to this power, between what goes with tokens and
what goes with pairs: on the published tables a line over the length itself is 6 % too slow in the mean, one
over its square 4 % too fast, this one off by 1 %."""


class Table(Strict):
    """Seconds over a number of sequences and the length of each.

    Attributes:
        batch: sequences, rising, ``[B]``.
        length: tokens of each, rising, ``[L]``.
        seconds: ``[B, L]``, never falling with the length.
    """

    batch: Sizes
    length: Sizes
    seconds: Grid

    @model_validator(mode="after")
    def _check(self) -> Table:
        for name, axis in (("batch", self.batch), ("length", self.length)):
            if any(a >= b for a, b in pairwise(axis)):
                raise ValueError(f"its {name} must rise")
        if len(self.seconds) != len(self.batch) or any(len(row) != len(self.length) for row in self.seconds):
            raise ValueError(f"its seconds must be {len(self.batch)} rows of {len(self.length)}")
        if any(a > b for row in self.seconds for a, b in pairwise(row)):
            raise ValueError("its seconds must not fall with the length")
        return self

    def row(self, batch: float) -> tuple[float, ...]:
        """Return the seconds of so many sequences at each length: a line between two numbers of them.

        Fewer than the first cost what it does; beyond the last it goes on as between the last two.
        """
        low, high, share = bracket(self.batch, batch)
        first = self.seconds[low]
        if not share:
            return first
        found, least = [], 0.0
        for one, other in zip(first, self.seconds[high], strict=True):
            least = max(least, one + share * (other - one))
            found.append(least)
        return tuple(found)


class DecodeTable(Table):
    """Seconds of one iteration's decode attention, all layers, over sequences and their mean context.

    It is a line between two contexts, so a run of decode steps adds up exactly and ends at the next one.
    """

    _rows: dict[int, tuple[float, ...]] = PrivateAttr(default_factory=dict)

    def line(self, batch: int, context: int) -> Line:
        """Return what a batch of sequences costs from this context (tokens in all) on.

        Args:
            batch: sequences, at least 1.
            context: tokens that they hold together.
        """
        row = self._rows.get(batch)
        if row is None:
            row = self._rows[batch] = self.row(batch)
        mean, at = context // batch, self.length
        if mean < at[0] or len(at) == 1:
            return Line(row[0], 0.0, at[0] - 1 if len(at) > 1 else None)
        left = min(bisect_right(at, mean), len(at) - 1) - 1
        slope = (row[left + 1] - row[left]) / (at[left + 1] - at[left])
        until = at[left + 1] - 1 if left + 2 < len(at) else None
        return Line(row[left] - slope * at[left], slope / batch, until)

    def __call__(self, batch: int, context: int) -> float:
        """Return the seconds of a batch of sequences over so many tokens of context."""
        if not batch:
            return 0.0
        fixed, a_token, _ = self.line(batch, context)
        return fixed + a_token * context


class PromptTable(Table):
    """Seconds of one iteration's prompts in attention, all layers, over whole prompts and their length."""

    def at(self, prompts: float, length: float) -> float:
        """Return the seconds of so many whole prompts of such a length."""
        if not prompts:
            return 0.0
        row = self.row(prompts)
        low, high, share = bracket(self.length, length, BENT)
        return row[low] + share * (row[high] - row[low])

    def __call__(self, tokens: int, pairs: int) -> float:
        """Return the seconds of chunks: so many tokens that attend to so many pairs of a query and a key.

        They are taken to be whole prompts in which a token attends to as many keys on average: 2·pairs /
        tokens − 1 long, and tokens over that in number. Where that is less than one prompt, it is that share
        of one, beyond what the shortest takes.

        Args:
            tokens: in all chunks.
            pairs: in all chunks; a chunk of t tokens after h has t·h + t·(t + 1) / 2.
        """
        if not tokens:
            return 0.0
        length = max(1.0, 2 * pairs / tokens - 1)
        count = tokens / length
        if count >= 1:
            return self.at(count, length)
        least = self.seconds[0][0]
        return least + count * (self.at(1, length) - least)


class ReachTerm(Strict):
    """Attention of layers that do not look back on all tokens.

    Attributes:
        kind: ``window`` or ``chunk``.
        size: tokens.
        decode: over sequences and the mean of what is within reach.
        prefill: over whole prompts and their length, pairs being those within reach; None if chunked layers'
            prompts were not timed.
    """

    kind: Literal["window", "chunk"]
    size: Annotated[int, Field(ge=1)]
    decode: DecodeTable
    prefill: PromptTable


class StatesTerm(Strict):
    """Recurrent layers beside their products.

    Attributes:
        decode: over sequences that decode.
        prefill: over prompts and their mean length.
    """

    decode: Curve
    prefill: PromptTable


def bracket(axis: Sequence[int], size: float, power: float = 1.0) -> tuple[int, int, float]:
    """Return the two places between which a size lies, and how far on the way it is.

    Below the first place the way is 0; beyond the last it is above 1, along the last two.

    Args:
        axis: sizes, rising.
        size: any.
        power: of sizes, over which the way is measured.
    """
    if len(axis) == 1 or size <= axis[0]:
        return 0, 0, 0.0
    right = min(bisect_right(axis, size), len(axis) - 1)
    low, high = axis[right - 1] ** power, axis[right] ** power
    return right - 1, right, (size**power - low) / (high - low)

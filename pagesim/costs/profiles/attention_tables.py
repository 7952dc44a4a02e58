"""Attention as tables: what was measured at points, straight between them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

from pydantic import Field, model_validator

from pagesim.costs.profiles.attention_terms import Line
from pagesim.costs.profiles.curves import Seconds, Strict

Axis = Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1, strict=False)]
Row = Annotated[tuple[Seconds, ...], Field(strict=False)]
Rows = Annotated[tuple[Row, ...], Field(min_length=1, strict=False)]


class DecodeTable(Strict):
    """Seconds of one iteration's decode attention, all layers, over the batch and the tokens of a sequence.

    Sequences of different lengths take what as many of their mean length would. Between the points of the
    table seconds are straight in both directions; beyond the last one its last slope goes on, and below the
    first one they are what the first point takes.

    Attributes:
        batches: sequences, rising, ``[B]``.
        contexts: mean tokens of a sequence, rising, ``[C]``.
        seconds: ``[B, C]``, never falling with the context.
    """

    batches: Axis
    contexts: Axis
    seconds: Rows

    @model_validator(mode="after")
    def _check(self) -> DecodeTable:
        _check_axes(self.batches, self.contexts, self.seconds)
        if any(a > b for row in self.seconds for a, b in pairwise(row)):
            raise ValueError("its times must not fall with the context")
        return self

    def line(self, batch: int, context: int) -> Line:
        """Return what a batch of sequences costs from this context (tokens in all) on.

        Args:
            batch: sequences, at least 1.
            context: tokens that they hold together.
        """
        return self.lines(batch)[bisect_right(self.contexts, context // batch)]

    def lines(self, batch: int) -> tuple[Line, ...]:
        """Return what a batch costs before the first point of its mean context, between points, and beyond.

        Args:
            batch: sequences, at least 1.
        """
        row, knots = self._row(batch), self.contexts
        first, beyond = Line(row[0], 0.0, knots[0] - 1), Line(row[-1], 0.0, None)
        between = []
        for (a, b), (low, high) in zip(pairwise(knots), pairwise(row), strict=True):
            slope = max(0.0, high - low) / (b - a)
            between.append(Line(low - slope * a, slope / batch, b - 1))
        if between:
            beyond = between[-1]._replace(until=None)
        return (first, *between, beyond)

    def __call__(self, batch: int, context: int) -> float:
        """Return the seconds of a batch of sequences over so many tokens of context."""
        if not batch:
            return 0.0
        fixed, a_token, _ = self.line(batch, context)
        return fixed + a_token * context

    def _row(self, batch: int) -> tuple[float, ...]:
        """Return the seconds of a batch at each context."""
        left, share = _between(self.batches, batch)
        low, high = self.seconds[left], self.seconds[min(left + 1, len(self.batches) - 1)]
        return tuple(max(0.0, a + share * (b - a)) for a, b in zip(low, high, strict=True))


class PrefillTable(Strict):
    """Seconds of one iteration's prompts in attention, all layers, over their length and their number.

    What was measured are whole prompts of one length. Tokens that attend to so many pairs take what as many
    tokens of such prompts would: prompts in which a token attends to as many keys in the mean. So a chunk
    behind a long history is a part of a longer prompt, which takes its share, and no less than a launch.

    Attributes:
        lengths: tokens of a prompt, rising, ``[L]``.
        batches: prompts, rising, ``[B]``.
        seconds: ``[L, B]``.
        launch_s: the least that an iteration with a prompt takes.
    """

    lengths: Axis
    batches: Axis
    seconds: Rows
    launch_s: Seconds = 0.0

    @model_validator(mode="after")
    def _check(self) -> PrefillTable:
        _check_axes(self.lengths, self.batches, self.seconds)
        return self

    def __call__(self, tokens: int, pairs: int) -> float:
        """Return the seconds of so many new tokens that attend to so many pairs."""
        if not tokens:
            return 0.0
        length = max(1.0, 2 * pairs / tokens - 1)
        left, share = _between(self.lengths, length)
        right = min(left + 1, len(self.lengths) - 1)
        # Parts of longer prompts than these tokens make take no less than as many of whole prompts.
        whole = max(0, bisect_right(self.lengths, tokens) - 1)
        low = self._of(left, tokens)
        for row in range(whole, left):
            low = max(low, self._of(row, tokens))
        high = self._of(right, tokens)
        if right > whole:
            high = max(low, high)
        return max(self.launch_s, low + share * (high - low))

    def _of(self, row: int, tokens: int) -> float:
        """Return what so many tokens take in prompts of one of the lengths."""
        prompts = tokens / self.lengths[row]
        seconds = self.seconds[row]
        if prompts <= self.batches[0]:
            return seconds[0] * prompts / self.batches[0]
        left, share = _between(self.batches, prompts)
        right = min(left + 1, len(seconds) - 1)
        return seconds[left] + share * (seconds[right] - seconds[left])


class ChunkTable(Strict):
    """Seconds of one iteration's prompts in attention, all layers, over new tokens and those before them.

    What was measured are chunks of one prompt, each behind a history. Tokens of several prompts take what as
    many tokens of one do that attend to as many keys in the mean. Where these are fewer than those of a chunk
    without a history, seconds are straight between a launch and that chunk.

    Attributes:
        tokens: of a chunk, rising, ``[T]``.
        histories: tokens of the prompt before the chunk, rising, ``[H]``.
        seconds: ``[T, H]``, never falling with the history.
        launch_s: of an iteration with a prompt.
    """

    tokens: Axis
    histories: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1, strict=False)]
    seconds: Rows
    launch_s: Seconds = 0.0

    @model_validator(mode="after")
    def _check(self) -> ChunkTable:
        _check_axes(self.tokens, self.histories, self.seconds)
        if any(a > b for row in self.seconds for a, b in pairwise(row)):
            raise ValueError("its times must not fall with the history")
        if any(row[0] < self.launch_s for row in self.seconds):
            raise ValueError("a chunk must not take less than a launch")
        return self

    def __call__(self, tokens: int, pairs: int) -> float:
        """Return the seconds of so many new tokens that attend to so many pairs."""
        if not tokens:
            return 0.0
        keys = pairs / tokens
        left, share = _between(self.tokens, tokens)
        low, high = self._of(left, keys), self._of(min(left + 1, len(self.tokens) - 1), keys)
        return max(self.launch_s, low + share * (high - low))

    def _of(self, row: int, keys: float) -> float:
        """Return what one of the chunks takes whose tokens attend to so many keys in the mean."""
        seconds, own = self.seconds[row], (self.tokens[row] + 1) / 2
        history = keys - own
        if history < self.histories[0]:
            return self.launch_s + (seconds[0] - self.launch_s) * keys / (own + self.histories[0])
        left, share = _between(self.histories, history)
        right = min(left + 1, len(seconds) - 1)
        return seconds[left] + share * (seconds[right] - seconds[left])


def _between(knots: Sequence[int], at: float) -> tuple[int, float]:
    """Return the knot to the left, and how far towards the next: above 1 beyond the last, never below 0."""
    if len(knots) == 1:
        return 0, 0.0
    left = min(max(bisect_right(knots, at), 1), len(knots) - 1) - 1
    return left, max(0.0, (at - knots[left]) / (knots[left + 1] - knots[left]))


def _check_axes(rows: Sequence[int], columns: Sequence[int], seconds: Sequence[Sequence[float]]) -> None:
    for axis in (rows, columns):
        if any(a >= b for a, b in pairwise(axis)):
            raise ValueError("its sizes must rise")
    if len(seconds) != len(rows) or any(len(row) != len(columns) for row in seconds):
        raise ValueError(f"needs {len(rows)} rows of {len(columns)} times")

"""Attention spans: tokens read by layers that attend to a limited span, summed over running sequences.

A decoding sequence grows by one token per step, so it has ``base + steps`` tokens. It enters once and leaves
once, however long it decodes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import Protocol

from pagesim.kvcache import BlockManager

UNBOUNDED = 1 << 40
"""More steps than any run has."""


class SpanReads(Protocol):
    """The attention span of some layers, and the decoding sequences that they read."""

    def read(self, length: int) -> int:
        """Return how many tokens the last token of a sequence attends to, itself included."""

    def pairs(self, tokens: int) -> int:
        """Return the number of (query, key) pairs over the first ``tokens`` tokens of a sequence."""

    def enter(self, base: int) -> None:
        """Add a sequence that starts to decode."""

    def leave(self, base: int) -> None:
        """Remove a sequence that entered before."""

    def at(self, steps: int) -> tuple[int, int, int]:
        """Return what all sequences read after ``steps`` steps, which must never decrease between calls.

        Returns:
            The tokens that all of them read; by how many that grows per step; and for how many steps it does,
            this one included.
        """


class LastTokens:
    """Layers that read the last ``size`` tokens, or any ``size`` of them: the minimum of length and size.

    Args:
        size: span in tokens, at least 1.
    """

    __slots__ = ("_full", "_full_from", "_growing", "_sum", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._growing: list[int] = []  # sorted bases of sequences shorter than the size
        self._sum = 0  # of these bases
        self._full = 0  # number of the other sequences
        self._full_from = size  # their bases are at least this

    def read(self, length: int) -> int:
        return min(length, self.size)

    def pairs(self, tokens: int) -> int:
        short = min(tokens, self.size)
        return short * (short + 1) // 2 + (tokens - short) * self.size

    def enter(self, base: int) -> None:
        if base >= self._full_from:
            self._full += 1
        else:
            insort(self._growing, base)
            self._sum += base

    def leave(self, base: int) -> None:
        if base >= self._full_from:
            self._full -= 1
        else:
            del self._growing[bisect_left(self._growing, base)]
            self._sum -= base

    def at(self, steps: int) -> tuple[int, int, int]:
        growing, full_from = self._growing, self.size - steps
        assert full_from <= self._full_from, "steps of growth are not taken back"
        self._full_from = full_from
        while growing and growing[-1] >= full_from:
            self._sum -= growing.pop()
            self._full += 1
        read = self._sum + len(growing) * steps + self._full * self.size
        # The longest of them still grows in the step in which its length reaches the size.
        return read, len(growing), full_from - growing[-1] + 1 if growing else UNBOUNDED


class SinceChunk:
    """Layers that read the tokens since the last multiple of a size.

    Args:
        size: chunk size in tokens, at least 1.
    """

    __slots__ = ("_places", "_sum", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        # Sorted positions of the last tokens within their chunks, after 0 steps or any multiple of the size.
        self._places: list[int] = []
        self._sum = 0

    def read(self, length: int) -> int:
        return (length - 1) % self.size + 1

    def pairs(self, tokens: int) -> int:
        chunks, rest = divmod(tokens, self.size)
        return chunks * (self.size * (self.size + 1) // 2) + rest * (rest + 1) // 2

    def enter(self, base: int) -> None:
        place = (base - 1) % self.size
        insort(self._places, place)
        self._sum += place

    def leave(self, base: int) -> None:
        place = (base - 1) % self.size
        del self._places[bisect_left(self._places, place)]
        self._sum -= place

    def at(self, steps: int) -> tuple[int, int, int]:
        places, size = self._places, self.size
        if not places:
            return 0, 0, UNBOUNDED
        passed = steps % size
        # Sequences from this index on have begun another chunk than after 0 steps.
        later = bisect_left(places, size - passed)
        read = self._sum + len(places) * (passed + 1) - (len(places) - later) * size
        last = places[later - 1] if later else places[-1] - size
        return read, len(places), size - passed - last


class AttentionSpans:
    """Counts what an iteration reads within each of several spans; a scheduler reports what it computes.

    Args:
        spans: attention spans, in the order in which results are returned.
        memory: block manager, whose ``steps`` counts the steps.
    """

    __slots__ = ("_alone", "_memory", "_pairs", "_prompts", "_spans", "_started")

    def __init__(self, spans: Iterable[SpanReads], memory: BlockManager) -> None:
        self._spans = tuple(spans)
        self._memory = memory
        self._begin()

    def enter(self, base: int) -> None:
        """Add a sequence of ``base + BlockManager.steps`` tokens that starts to decode."""
        for span in self._spans:
            span.enter(base)

    def leave(self, base: int) -> None:
        """Remove a sequence that entered before."""
        for span in self._spans:
            span.leave(base)

    def compute(self, before: int, tokens: int, *, starts: bool) -> None:
        """Record a chunk of a prompt in the current iteration.

        Args:
            before: tokens of the sequence that were computed or cached before.
            tokens: tokens in the chunk.
            starts: whether it is the last chunk, in which case the sequence has entered already.
        """
        self._prompts += 1
        for number, span in enumerate(self._spans):
            self._pairs[number] += span.pairs(before + tokens) - span.pairs(before)
            if starts:
                self._started[number] += span.read(before + tokens)

    def decode(self, length: int) -> None:
        """Record a sequence that reaches ``length`` tokens in the current iteration and has not entered."""
        for number, span in enumerate(self._spans):
            self._alone[number] += span.read(length)

    def close(self) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        """End the current iteration, after its step was counted.

        Returns:
            The tokens that decoding sequences read, per span; the query-key pairs of prompts, per span; and
            the number of prompts, or chunks of them, that are computed.
        """
        steps = self._memory.steps
        apart = zip(self._spans, self._started, self._alone, strict=True)
        read = [span.at(steps)[0] - started + alone for span, started, alone in apart]
        closed = tuple(read), tuple(self._pairs), self._prompts
        self._begin()
        return closed

    def ahead(self) -> list[tuple[int, int, int]]:
        """Return, per span, what `SpanReads.at` returns for the next step."""
        steps = self._memory.steps + 1
        return [span.at(steps) for span in self._spans]

    def _begin(self) -> None:
        self._started = [0] * len(self._spans)
        self._alone = [0] * len(self._spans)
        self._pairs = [0] * len(self._spans)
        self._prompts = 0

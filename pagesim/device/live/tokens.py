"""Tokens: a sequence's token ids, as a function of their origin.

A token is a hash of the seed, its position, and a *name* of the text it belongs to: a request's prompt, a
sample's answer, or a segment of content that several requests share. So equal prompts have equal tokens and
the samples of a request differ. Any part of any sequence can be reproduced at any time without a record.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
import numpy.typing as npt

from pagesim.scheduling.request import EngineRequest
from pagesim.workloads.trace import MAX_SAMPLES

Ints = npt.NDArray[np.int64]

_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


class TokenIds:
    """The token ids of all sequences of a run.

    Args:
        vocab: exclusive upper bound of the ids.
        seed: seed of all token ids.
    """

    def __init__(self, vocab: int, seed: int) -> None:
        self.vocab = vocab
        self.seed = seed
        # For beams that took over another's tokens: their segments as (end, name).
        self._taken_over: dict[tuple[int, int], list[tuple[int, int]]] = {}

    def answer(self, request: EngineRequest, number: int) -> int:
        """Return the name of the answer that a request's sample generates."""
        if request.content is not None:
            answer: int = request.content.answer
            return answer
        return 2 * (request.row * MAX_SAMPLES + number) + 1

    def names(self, request: EngineRequest, number: int, start: int, stop: int) -> Ints:
        """Return the names of a sample's tokens from ``start`` up to ``stop``, ``[stop − start]``."""
        if request.content is not None:
            ends, names = request.content.ends, request.content.names
        else:
            past = self._past(request, number)
            ends = [end for end, _ in past]
            names = [name for _, name in past] + [self.answer(request, number)]
        column = np.empty(stop - start, np.int64)
        at = start
        while at < stop:
            segment = bisect_right(ends, at)
            end = min(stop, ends[segment]) if segment < len(ends) else stop
            column[at - start : end - start] = names[segment]
            at = end
        return column

    def ids(self, names: Ints, positions: Ints) -> Ints:
        """Return the ids of tokens from their names and positions, ``[N]`` each."""
        seeded = _mixed(names.astype(np.uint64) ^ np.uint64(self.seed << 32))
        mixed = _mixed(seeded + positions.astype(np.uint64))
        return (mixed % np.uint64(self.vocab)).astype(np.int64)

    def of(self, request: EngineRequest, number: int, start: int, stop: int) -> Ints:
        """Return the ids of a sample's tokens from ``start`` up to ``stop``, ``[stop − start]``."""
        return self.ids(self.names(request, number, start, stop), np.arange(start, stop))

    def take_over(self, request: EngineRequest, number: int, survivor: int, length: int) -> None:
        """Give a beam of a request the first ``length`` tokens of another one."""
        past = [(end, name) for end, name in self._past(request, survivor) if end < length]
        now = self.names(request, survivor, length - 1, length)[0]
        self._taken_over[request.row, number] = [*past, (length, int(now))]

    def _past(self, request: EngineRequest, number: int) -> list[tuple[int, int]]:
        return self._taken_over.get((request.row, number)) or [(request.prompt, 2 * request.row)]


def _mixed(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Hash each number (splitmix64); overflow is intended."""
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))

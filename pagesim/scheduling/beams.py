"""Which beams survive: without token probabilities, a reproducible random draw decides."""

from __future__ import annotations

from math import log
from random import Random

DROP = 0.085
"""A beam's probability of being dropped at a token, fitted to the savings from sharing on Alpaca
(docs/explanation/design.md)."""


class BeamSearch:
    """Decides which of a request's beams survive, independently of how the request is scheduled.

    At every token after the first, each beam is dropped with probability ``drop``, independently of the
    others. It is replaced by a fork of a survivor, drawn uniformly. At least one beam survives.

    Args:
        width: number of beams, at least 2.
        drop: probability that a beam is dropped at a token, between 0 and 1 exclusive.
        seed: random seed of this request's draws.
    """

    def __init__(self, width: int, drop: float, seed: int) -> None:
        self.width = width
        self._scale = 1 / log(1 - drop)
        self._random = Random(seed)
        # Pairs of a token and a beam are numbered width·(token − 2) + beam. The next one to be dropped is
        # drawn directly, so that tokens without a fork cost no time.
        self._next = -1
        self._draw()

    @property
    def token(self) -> int:
        """Token, counted from 1, at which beams are dropped next."""
        return 2 + self._next // self.width

    def fork(self) -> list[tuple[int, int]]:
        """Advance past that token and return its forks as (dropped beam, survivor that it copies)."""
        token, width = self._next // self.width, self.width
        dropped = []
        while self._next // width == token:
            dropped.append(self._next % width)
            self._draw()
        if len(dropped) == width:
            del dropped[self._random.randrange(width)]
        survivors = [beam for beam in range(width) if beam not in dropped]
        return [(beam, self._random.choice(survivors)) for beam in dropped]

    def _draw(self) -> None:
        # 1 − random() is never 0.
        self._next += 1 + int(log(1 - self._random.random()) * self._scale)

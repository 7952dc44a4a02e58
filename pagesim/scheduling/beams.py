"""Which beams survive: there are no probabilities of tokens here, so chance decides, always alike."""

from __future__ import annotations

from math import log
from random import Random

DROP = 0.085
"""A beam's chance of being dropped at a token, fitted to what sharing saves on Alpaca
(docs/explanation/design.md)."""


class BeamSearch:
    """Which of a request's beams survive, the same whatever the scheduler does to the request.

    At every token after the first each beam is dropped with probability ``drop``, independently of the
    others, and a fork of a survivor, any with equal probability, takes its place. At least one survives.

    Args:
        width: beams, at least 2.
        drop: probability, above 0 and below 1.
        seed: of this request's draws.
    """

    def __init__(self, width: int, drop: float, seed: int) -> None:
        self.width = width
        self._scale = 1 / log(1 - drop)
        self._random = Random(seed)
        # Beams at tokens, counted through: width·(token − 2) + beam. The next that is dropped is drawn at
        # once, so that tokens without a fork take no time.
        self._next = -1
        self._draw()

    @property
    def token(self) -> int:
        """The token, counted from 1, at which beams are dropped next."""
        return 2 + self._next // self.width

    def fork(self) -> list[tuple[int, int]]:
        """Pass that token; return the forks: (dropped beam, the survivor that it becomes a copy of)."""
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

"""The share of the tokens to come for which an admission leaves room.

Source: SGLang 0.5.23, ``Scheduler.init_schedule_policy``, ``ScheduleBatch.retract_decode``.
"""

from __future__ import annotations

from pagesim.setup.compiled import mypyc_attr

RETRACT_STEPS = 20
"""Tokens for which every request that goes on finds room where one is retracted."""

_DECAY_STEPS = 600


@mypyc_attr(allow_interpreted_subclasses=True)
class NewTokenRatio:
    """Falls with every decode step, and rises where requests are retracted.

    Args:
        conservativeness: scales it.

    Attributes:
        current: the ratio, at most 1.
    """

    def __init__(self, conservativeness: float) -> None:
        self._initial = min(0.7 * conservativeness, 1.0)
        self._least = min(self._initial * 0.14, 1.0)
        self._decay = (self._initial - self._least) / _DECAY_STEPS
        self.current = self._initial

    def decay(self, steps: int = 1) -> None:
        """Let the ratio fall, as in every decode step; a lower one that was set rises to the least."""
        ratio, decay, least = self.current, self._decay, self._least
        while steps and ratio != least:
            ratio = max(ratio - decay, least)
            steps -= 1
        self.current = ratio

    def over(self, steps: int) -> list[float]:
        """Return what it is going to be after each of so many decode steps."""
        found, now = [], self.current
        for _ in range(steps):
            self.decay()
            found.append(self.current)
        self.current = now
        return found

    def retract(self, generated: int, max_new_tokens: int, requests: int) -> None:
        """Set what so many requests need that go on, by the tokens that they have and may generate in all."""
        self.current = min(1.0, (generated + RETRACT_STEPS * requests) / (max_new_tokens + 1))

    def reset(self) -> None:
        """Begin anew, as where nothing is left to do."""
        self.current = self._initial

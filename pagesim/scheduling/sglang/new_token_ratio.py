"""The share of future tokens for which an admission reserves room.

Source: SGLang 0.5.23, ``Scheduler.init_schedule_policy``, ``ScheduleBatch.retract_decode``.
"""

from __future__ import annotations

from pagesim.setup.compiled import mypyc_attr

RETRACT_STEPS = 20
"""Tokens that every remaining request has room for after a retraction."""

_DECAY_STEPS = 600


@mypyc_attr(allow_interpreted_subclasses=True)
class NewTokenRatio:
    """A ratio that falls with every decode step and rises when requests are retracted.

    Args:
        conservativeness: factor that scales it.

    Attributes:
        current: the ratio, at most 1.
    """

    def __init__(self, conservativeness: float) -> None:
        self._initial = min(0.7 * conservativeness, 1.0)
        self._least = min(self._initial * 0.14, 1.0)
        self._decay = (self._initial - self._least) / _DECAY_STEPS
        self.current = self._initial

    def decay(self, steps: int = 1) -> None:
        """Lower the ratio, as every decode step does; a ratio below the minimum rises to it."""
        ratio, decay, least = self.current, self._decay, self._least
        while steps and ratio != least:
            ratio = max(ratio - decay, least)
            steps -= 1
        self.current = ratio

    def over(self, steps: int) -> list[float]:
        """Return the ratio after each of the next ``steps`` decode steps."""
        found, now = [], self.current
        for _ in range(steps):
            self.decay()
            found.append(self.current)
        self.current = now
        return found

    def retract(self, generated: int, max_new_tokens: int, requests: int) -> None:
        """Set the ratio by the tokens that the remaining requests have generated and may generate in all."""
        self.current = min(1.0, (generated + RETRACT_STEPS * requests) / (max_new_tokens + 1))

    def reset(self) -> None:
        """Return to the initial ratio, as when nothing is left to do."""
        self.current = self._initial

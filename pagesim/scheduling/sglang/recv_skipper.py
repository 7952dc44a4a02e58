"""How often the loop receives requests that have arrived.

Source: SGLang 0.5.23, ``srt/managers/scheduler_components/recv_skipper.py``.
"""

from __future__ import annotations

from pagesim.setup.compiled import mypyc_attr

PREFILL_WEIGHT = 1000
"""Decodes that a prefill counts for: the turn after one receives, unless the interval is longer."""


@mypyc_attr(allow_interpreted_subclasses=True)
class SchedulerRecvSkipper:
    """Counts turns, and lets the loop receive arrivals only once per interval.

    Args:
        interval: decode turns from one receive to the next; 1 to receive in each turn.

    Attributes:
        weight: what the next turn counts for: more if the last batch launched had prompts.
    """

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self.weight = 1
        self._counter = 0

    def handle(self) -> bool:
        """Count a turn; return whether it receives arrivals."""
        self._counter += self.weight
        if self._counter < self.interval:
            return False
        self._counter = 0
        return True

    def reset(self) -> None:
        """Restart the count, as an idle engine does, which receives all the time."""
        self._counter = 0
        self.weight = 1

    @property
    def turns_until_look(self) -> int:
        """Decode turns before the one that receives."""
        return max(0, self.interval - self._counter - self.weight)

    def advance(self, turns: int) -> None:
        """Count ``turns`` decode turns; nothing has arrived when any of them receives."""
        self.handle()
        self.weight = 1
        self._counter = (self._counter + turns - 1) % self.interval

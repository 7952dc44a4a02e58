"""How often the loop looks for requests that have arrived.

Source: SGLang 0.5.23, ``srt/managers/scheduler_components/recv_skipper.py``.
"""

from __future__ import annotations

from pagesim.setup.compiled import mypyc_attr

PREFILL_WEIGHT = 1000
"""Decodes for which a prefill counts: the turn behind one looks, unless the interval is longer."""


@mypyc_attr(allow_interpreted_subclasses=True)
class SchedulerRecvSkipper:
    """Counts turns, and lets the loop look at what has arrived in every so many of them.

    Args:
        interval: turns of decodes from one look to the next; 1 for a look in each turn.

    Attributes:
        weight: what the next turn counts: more if the batch launched last is one of prompts.
    """

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self.weight = 1
        self._counter = 0

    def handle(self) -> bool:
        """Count a turn; say whether it looks at what has arrived."""
        self._counter += self.weight
        if self._counter < self.interval:
            return False
        self._counter = 0
        return True

    def reset(self) -> None:
        """Begin to count anew, as an idle engine does, which looks all the time."""
        self._counter = 0
        self.weight = 1

    @property
    def turns_until_look(self) -> int:
        """Turns of decodes before the one that looks."""
        return max(0, self.interval - self._counter - self.weight)

    def advance(self, turns: int) -> None:
        """Count so many turns that decode; nothing has arrived when any of them looks."""
        self.handle()
        self.weight = 1
        self._counter = (self._counter + turns - 1) % self.interval

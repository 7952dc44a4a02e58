"""What holds prompts back though there is room for them.

Source: SGLang 0.5.23, ``srt/managers/prefill_delayer.py``, ``Scheduler._should_defer_prefill``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from pagesim.scheduling.sglang.options import SglangOptions
from pagesim.setup.compiled import mypyc_attr
from pagesim.sim.clock import TICKS_PER_SECOND

MAX_DELAY_MS = 5000.0
"""Milliseconds for which few waiting requests hold prompts back where no other limit is given."""

RECENT = 16
"""Batches of prompts whose sizes are remembered."""


class DelayerRow(NamedTuple):
    """What a group of GPUs says to the others before any of them lets prompts run.

    Attributes:
        can: whether there is room for a prompt.
        is_low: whether, besides, so little of its cache is held that none is to be held back.
        running: requests that run.
        recent: prompts that ran, or could have run, together lately; the most of them.
        waiting: requests that wait.
        is_late: whether few waiting requests have held prompts back for too long.
    """

    can: bool
    is_low: bool
    running: int
    recent: int
    waiting: int
    is_late: bool


@mypyc_attr(allow_interpreted_subclasses=True)
class PrefillDelayer:
    """Lets prompts run only where as many find a place as ran together lately, and in all groups of GPUs.

    It is asked once in a pass of admission, at the first request for which there is room; its answer holds
    for the rest of the pass. The very first time that it would say no to all groups it says yes.

    Args:
        options: resolved.
        max_running_requests: requests that may run.

    Attributes:
        exchange: returns what all groups say, from what this one says; by default there is no other.
    """

    def __init__(self, options: SglangOptions, max_running_requests: int) -> None:
        self._options = options
        self._most = max_running_requests
        self.exchange: Callable[[DelayerRow], list[DelayerRow]] = lambda row: [row]
        milliseconds = options.prefill_delayer_max_delay_ms
        self._max_delay = (MAX_DELAY_MS if milliseconds is None else milliseconds) / 1000 * TICKS_PER_SECOND
        self._sizes: deque[int] = deque(maxlen=RECENT)
        self._spared_first = False
        self._delayed = 0  # passes that were refused in a row,
        self._since = 0  # and when the first of them was, in ticks
        self._now = self._waiting = self._tried = 0
        self._usage = 0.0
        self._verdict: bool | None = None

    def begin(self, now: int, waiting: int, usage: float) -> None:
        """Begin a pass.

        Args:
            now: ticks.
            waiting: requests that wait.
            usage: share of the cache that requests hold.
        """
        self._now, self._waiting, self._usage = now, waiting, usage
        self._tried, self._verdict = 0, None

    def allows(self, running: int) -> bool:
        """Say whether prompts may run in this pass, beside so many requests."""
        self._tried = max(self._tried, min(max(self._waiting, 1), max(self._most - running, 1)))
        if self._verdict is None:
            self._verdict = self._negotiate(running, can=True)
        return self._verdict

    def end(self, size: int, running: int) -> None:
        """End a pass.

        Args:
            size: requests of the batch that came from it; 0 for none.
            running: those that run beside it.
        """
        if self._verdict is None:
            self._negotiate(running, can=False)
        if size or self._tried:
            self._sizes.append(size or self._tried)

    def clear(self) -> None:
        """Forget for how long prompts have been held back, as in a pass in which there is room for none."""
        self._delayed = 0

    def _negotiate(self, own_running: int, *, can: bool) -> bool:
        """Say whether prompts may run, by what this group and the others have."""
        options, delayed = self._options, self._delayed
        self.clear()
        watermark = options.prefill_delayer_token_usage_low_watermark
        rows = self.exchange(
            DelayerRow(
                can,
                can and watermark is not None and self._usage < watermark,
                own_running,
                max(self._sizes, default=0),
                self._waiting,
                delayed > 0 and self._now - self._since >= self._max_delay,
            )
        )
        if not any(row.can for row in rows) or any(row.is_low for row in rows):
            return True
        if all(row.can for row in rows):
            running, recent = max(row.running for row in rows), max(row.recent for row in rows)
            if self._most - running >= recent and not self._waits_for_more(rows, running, recent):
                return True
            if not self._spared_first:
                self._spared_first = True
                return True
        if delayed >= options.prefill_delayer_max_delay_passes - 1:
            return True
        if not delayed:
            self._since = self._now
        self._delayed = delayed + 1
        return False

    def _waits_for_more(self, rows: list[DelayerRow], running: int, recent: int) -> bool:
        """Say whether few requests wait beside those that run, and have not waited for long."""
        options, ratio = self._options, self._options.prefill_delayer_queue_min_ratio
        if ratio is None or not running or any(row.is_late for row in rows):
            return False
        enough = min(int(running * ratio), options.prefill_max_requests or recent)
        return max(row.waiting for row in rows) < enough


@mypyc_attr(allow_interpreted_subclasses=True)
class PrefillDecodeInterval:
    """Turns without prompts behind each batch of prompts.

    Args:
        turns: how many.
        least_running: running requests below which the interval is over.
    """

    def __init__(self, turns: int, least_running: int) -> None:
        self._turns = turns
        self._least_running = least_running
        self._left = 0

    def defers(self, running: int) -> bool:
        """Count a turn beside so many running requests; say whether it runs no prompts."""
        if not self._left:
            return False
        if running < self._least_running:
            self._left = 0
            return False
        self._left -= 1
        return True

    @property
    def is_on(self) -> bool:
        """Whether the next turn may be one without prompts."""
        return self._left > 0

    def begin(self) -> None:
        """Begin an interval behind a batch of prompts."""
        self._left = self._turns

    def end(self) -> None:
        """End the interval, as in an idle engine, whose turns take no time."""
        self._left = 0

    def advance(self, turns: int, running: int) -> bool:
        """Count so many turns that only decode; say whether a pass of admission was made in any."""
        if running < self._least_running:
            self._left = 0
        deferred = min(self._left, turns)
        self._left -= deferred
        return deferred < turns

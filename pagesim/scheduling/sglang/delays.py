"""Delays that hold prompts back even though there is room for them.

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
"""Default milliseconds for which a short queue may hold prompts back."""

RECENT = 16
"""Number of prefill batches whose sizes are remembered."""


class DelayerRow(NamedTuple):
    """What a group of GPUs reports to the others before any of them runs prompts.

    Attributes:
        can: whether there is room for a prompt.
        is_low: whether, in addition, its cache usage is so low that no prompt should be held back.
        running: number of running requests.
        recent: largest number of prompts that recently ran, or could have run, together.
        waiting: number of waiting requests.
        is_late: whether prompts have been held back for the maximum time.
    """

    can: bool
    is_low: bool
    running: int
    recent: int
    waiting: int
    is_late: bool


@mypyc_attr(allow_interpreted_subclasses=True)
class PrefillDelayer:
    """Delays prompts until there are slots for as many as recently ran together, in all groups of GPUs.

    It decides once per admission pass, at the first request for which there is room, and its answer holds
    for the rest of the pass. The first refusal that would hit all groups is turned into a permission.

    Args:
        options: resolved options.
        max_running_requests: maximum number of running requests.

    Attributes:
        exchange: takes this group's row and returns all groups' rows; by default there are no others.
    """

    def __init__(self, options: SglangOptions, max_running_requests: int) -> None:
        self._options = options
        self._most = max_running_requests
        self.exchange: Callable[[DelayerRow], list[DelayerRow]] = lambda row: [row]
        milliseconds = options.prefill_delayer_max_delay_ms
        self._max_delay = (MAX_DELAY_MS if milliseconds is None else milliseconds) / 1000 * TICKS_PER_SECOND
        self._sizes: deque[int] = deque(maxlen=RECENT)
        self._spared_first = False
        self._delayed = 0  # number of consecutive passes refused
        self._since = 0  # when the first of these took place, in ticks
        self._now = self._waiting = self._tried = 0
        self._usage = 0.0
        self._verdict: bool | None = None

    def begin(self, now: int, waiting: int, usage: float) -> None:
        """Begin a pass.

        Args:
            now: the current time, in ticks.
            waiting: number of waiting requests.
            usage: share of the cache that requests hold.
        """
        self._now, self._waiting, self._usage = now, waiting, usage
        self._tried, self._verdict = 0, None

    def allows(self, running: int) -> bool:
        """Return whether prompts may run in this pass, together with ``running`` requests."""
        self._tried = max(self._tried, min(max(self._waiting, 1), max(self._most - running, 1)))
        if self._verdict is None:
            self._verdict = self._negotiate(running, can=True)
        return self._verdict

    def end(self, size: int, running: int) -> None:
        """End a pass.

        Args:
            size: number of requests in the batch that the pass yielded; 0 for none.
            running: number of other running requests.
        """
        if self._verdict is None:
            self._negotiate(running, can=False)
        if size or self._tried:
            self._sizes.append(size or self._tried)

    def clear(self) -> None:
        """Reset the count of refused passes, as a pass without room for any prompt does."""
        self._delayed = 0

    def _negotiate(self, own_running: int, *, can: bool) -> bool:
        """Return whether prompts may run, given the state of this group and the others."""
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
        """Return whether too few requests are waiting compared to those running, and not yet for too long."""
        options, ratio = self._options, self._options.prefill_delayer_queue_min_ratio
        if ratio is None or not running or any(row.is_late for row in rows):
            return False
        enough = min(int(running * ratio), options.prefill_max_requests or recent)
        return max(row.waiting for row in rows) < enough


@mypyc_attr(allow_interpreted_subclasses=True)
class PrefillDecodeInterval:
    """Enforces a number of turns without prompts after each batch of prompts.

    Args:
        turns: number of such turns.
        least_running: number of running requests below which the interval ends early.
    """

    def __init__(self, turns: int, least_running: int) -> None:
        self._turns = turns
        self._least_running = least_running
        self._left = 0

    def defers(self, running: int) -> bool:
        """Count a turn with ``running`` requests; return whether it must not run prompts."""
        if not self._left:
            return False
        if running < self._least_running:
            self._left = 0
            return False
        self._left -= 1
        return True

    @property
    def is_on(self) -> bool:
        """Whether the interval has turns left, so that the next turn may be one without prompts."""
        return self._left > 0

    def begin(self) -> None:
        """Begin an interval after a batch of prompts."""
        self._left = self._turns

    def end(self) -> None:
        """End the interval, as in an idle engine, whose turns pass in no time."""
        self._left = 0

    def advance(self, turns: int, running: int) -> bool:
        """Count decode-only turns; return whether any of them included an admission pass."""
        if running < self._least_running:
            self._left = 0
        deferred = min(self._left, turns)
        self._left -= deferred
        return deferred < turns

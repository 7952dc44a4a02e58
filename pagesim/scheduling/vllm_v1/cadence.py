"""Prefill cadence: steps reserved for decoding requests between two that compute prompts."""

from __future__ import annotations

from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class PrefillCadence:
    """Decides in which steps prompts are held back.

    Source: vLLM 0.33.0, v1/core/sched/scheduler.py, 389 to 425, 748 to 793 and 1606 to 1629, and
    v1/engine/core.py, 2455 to 2463.

    Args:
        interval: minimum number of steps from one that computes prompts to the next.

    Attributes:
        holds: whether the current step holds prompts back.
        prefills: whether it computes prompt tokens other than just the last token of a prompt.
        shared_step: common step number by which several engines admit prompts at the same time; None if
            each engine counts its own steps.
        deferred: trace rows of waiting requests that were skipped and not admitted since.
    """

    __slots__ = (
        "_empty",
        "_interval",
        "_is_bound",
        "_last_prefill",
        "deferred",
        "holds",
        "prefills",
        "shared_step",
    )

    def __init__(self, interval: int) -> None:
        self.holds = self.prefills = False
        self.shared_step: int | None = None
        self.deferred: set[int] = set()
        self._interval = interval
        self._last_prefill = -interval
        self._empty = 0  # steps that computed nothing, which do not count
        self._is_bound = False  # whether memory or slots kept requests waiting when prompts were let in

    def begin(self, steps: int, *, decodes: bool) -> None:
        """Begin a step after ``steps`` others; ``decodes`` is whether any running request is decoding."""
        if self.shared_step is None:
            is_early = steps - self._empty + 1 - self._last_prefill < self._interval
        else:
            is_early = self.shared_step % self._interval != 0
        self.holds = decodes and not self._is_bound and is_early
        self.prefills = False

    def looked_at_waiting(self, waiting: int) -> None:
        """Note how many wait; all but the deferred ones lacked memory, a slot or token budget."""
        if not self.holds:
            self._is_bound = waiting > len(self.deferred)

    def end(self, steps: int, tokens: int) -> None:
        """End the step, which is the ``steps``-th and computes ``tokens`` tokens."""
        if not tokens:
            self._empty += 1
        elif self.prefills:
            self._last_prefill = steps - self._empty

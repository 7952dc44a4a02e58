"""Simulated: the time in which a driver runs vLLM, and how long its steps take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MAX_EMPTY_STEPS = 1000
"""Empty schedules one after the other behind which no request will ever be scheduled."""


class Clock:
    """The time in seconds, under the names that vLLM calls in the module ``time``."""

    def __init__(self) -> None:
        self.now = 0.0

    def time(self) -> float:
        return self.now

    monotonic = perf_counter = time

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass(frozen=True)
class StepCost:
    """Seconds that a step takes: ``base_s``, and so much a batched token and a token of context."""

    base_s: float
    token_s: float
    context_s: float

    @classmethod
    def parse(cls, text: str) -> StepCost:
        """Return the cost that a manifest writes as ``affine:0.010,1e-5,1e-7``."""
        return cls(*map(float, text.removeprefix("affine:").split(",")))

    def step_s(self, tokens: int, context: int) -> float:
        return self.base_s + self.token_s * tokens + self.context_s * context


def check_progress(steps: list[dict[str, Any]]) -> None:
    """Refuse an engine that steps for ever.

    Raises:
        RuntimeError: the last schedules were empty, `MAX_EMPTY_STEPS` of them.
    """
    last = steps[-MAX_EMPTY_STEPS:]
    if len(last) == MAX_EMPTY_STEPS and not any(step["step_s"] for step in last):
        raise RuntimeError(f"nothing was scheduled in the last {MAX_EMPTY_STEPS} steps")

"""Traces for tests of any room."""

from __future__ import annotations

from typing import Any

import numpy as np

from pagesim.workloads.trace import Trace


def trace_of(*requests: tuple[float, int, int], **columns: Any) -> Trace:
    """Return requests of (arrival in s, tokens of the prompt, tokens generated)."""
    arrival, prompt, output = zip(*requests, strict=True)
    return Trace(np.array(arrival, float), np.array(prompt), np.array(output), **columns)


def random_load(seed: int = 0, size: int = 80, rate: float = 6.0, **columns: Any) -> Trace:
    """Return random requests of up to 200 and 120 tokens, that arrive as a Poisson process."""
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(1 / rate, size))
    return Trace(arrival, rng.integers(1, 200, size), rng.integers(1, 120, size), **columns)


def conversations(sessions: int = 8, turns: int = 4) -> Trace:
    """Return conversations whose prompts go on from one another."""
    rows = sorted(
        (2.0 * turn + 0.2 * session, session, 150 * (turn + 1))
        for turn in range(turns)
        for session in range(sessions)
    )
    arrival, session, prompt = map(np.array, zip(*rows, strict=True))
    return Trace(arrival, prompt, np.full(len(rows), 20), session_id=session)

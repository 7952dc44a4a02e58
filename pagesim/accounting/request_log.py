"""The request log: what becomes of each request, in columns by row of the trace."""

from __future__ import annotations

from array import array
from enum import IntEnum


class Move(IntEnum):
    """How a request that was scheduled before changed its place."""

    PREEMPTED = 0
    SWAPPED = 1
    BACK = 2
    ANSWERED = 3


class RequestLog:
    """What becomes of the requests of a trace, by row, whichever engine serves them.

    Args:
        requests: rows of the trace.

    Attributes:
        first_scheduled, first_token, finish: ticks; -1 for what has not happened.
        recomputes, swaps: how often each was preempted.
        status: a `Status` each.
        choices: of each victim whose preemption was free to choose: row, ticks, whether it was swapped, its
            tokens and blocks, and the ticks that swapping and recomputing were to take.
        cached_tokens: of prompts, found in the cache when they were admitted first, by row.
        loaded_tokens: tokens that were loaded from another tier when any were last, by row; None where there
            is no tier.
        sample_finish: where the samples of a request differ in length, when each was over, by row and sample.
        moves: (row, a `Move`, ticks) flat, in order: what lost its place, came back, and had a token again;
            None unless an array was put here before the run.
        sent, due: ticks at which clients sent requests and at which they wanted to, -1 for never; None where
            every request is sent at its arrival.
    """

    def __init__(self, requests: int) -> None:
        self.first_scheduled = array("q", [-1]) * requests
        self.first_token = array("q", [-1]) * requests
        self.finish = array("q", [-1]) * requests
        self.recomputes = array("i", [0]) * requests
        self.swaps = array("i", [0]) * requests
        self.status = bytearray(requests)
        self.choices: list[tuple[int, ...]] = []
        self.cached_tokens: dict[int, int] = {}
        self.loaded_tokens: dict[int, int] | None = None
        self.sample_finish: dict[int, dict[int, int]] = {}
        self.moves: array[int] | None = None
        self.sent: array[int] | None = None
        self.due: array[int] | None = None

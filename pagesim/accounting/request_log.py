"""The request log: the outcome of each request, in columns by row of the trace."""

from __future__ import annotations

from array import array
from enum import IntEnum


class Move(IntEnum):
    """How the state of a previously scheduled request changed."""

    PREEMPTED = 0
    SWAPPED = 1
    BACK = 2
    ANSWERED = 3


class RequestLog:
    """The outcome of a trace's requests, by row, whichever engine serves them.

    Args:
        requests: number of rows of the trace.

    Attributes:
        first_scheduled, first_token, finish: ticks; -1 for what has not happened.
        recomputes, swaps: preemptions of each request by recomputation and by swapping.
        status: a `Status` for each request.
        choices: one tuple per victim whose preemption mode was free to choose: row, ticks, whether it was
            swapped, its tokens and blocks, and the estimated ticks of swapping and of recomputing.
        cached_tokens: prompt tokens hit in the cache at first admission, by row.
        loaded_tokens: tokens of the latest load from another tier, by row; None if there is no tier.
        sample_finish: finish times of the samples of requests whose samples differ in length, by row and
            sample.
        moves: flat triples (row, `Move`, ticks), in order; None unless an array was assigned before the run.
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

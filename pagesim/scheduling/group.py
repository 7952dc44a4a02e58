"""Group: the samples of one request, from its admission until it leaves; Arrivals: the requests to come."""

from __future__ import annotations

from array import array

import numpy as np

from pagesim.clock import to_tick_column
from pagesim.request import IntColumn, Trace


class Arrivals:
    """The columns of a trace that a scheduler may see, one Python integer at a time.

    Args:
        trace: requests in order of arrival.
        rows: the rows of the trace that take part, ``[N]``; the others were turned away at the door.
    """

    def __init__(self, trace: Trace, rows: IntColumn) -> None:
        def column(values: IntColumn) -> array[int]:
            return array("q", values.astype(np.int64).tobytes())

        trace = trace.take(rows)
        self.row = column(rows)
        self.ticks = column(to_tick_column(trace.arrival_s))
        self.prompt = column(trace.prompt_tokens)
        self.output = column(trace.output_tokens)
        self.samples = column(trace.n)

    def __len__(self) -> int:
        return len(self.row)


NOBODY = Arrivals(Trace(np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64)), np.empty(0, np.int64))


class Group:
    """A request that has been admitted at least once: all its samples live, wait and move together.

    Attributes:
        row: the request's row in the trace.
        arrival: ticks.
        prompt, output: tokens; every sample generates ``output`` tokens.
        length: tokens of a sample (prompt and generated) whenever the group is not running.
        sequences: the samples' ids in memory; ``samples`` of them.
        base: while running, a sample's length minus the memory's ``steps_grown``.
        computed: while a prompt runs in chunks, the tokens of it that have run.
        last_step: while running, the value of ``steps_grown`` at which the last token is generated.
        order: counts admissions, so that equal arrivals keep the order in which they joined.
    """

    __slots__ = (
        "arrival",
        "base",
        "computed",
        "last_step",
        "length",
        "order",
        "output",
        "prompt",
        "row",
        "samples",
        "sequences",
    )

    def __init__(self, row: int, arrival: int, prompt: int, output: int, sequences: tuple[int, ...]) -> None:
        self.row = row
        self.arrival = arrival
        self.prompt = prompt
        self.output = output
        self.sequences = sequences
        self.samples = len(sequences)
        self.length = prompt
        self.base = 0
        self.computed = 0
        self.last_step = -1
        self.order = 0

    @property
    def final_length(self) -> int:
        """Tokens of a sample once it has finished."""
        return self.prompt + self.output

"""Arrivals: the expected requests, stored in columns."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import Final, TypeVar, overload

import numpy as np

from pagesim.scheduling.beams import DROP, BeamSearch
from pagesim.scheduling.content import Content, Contents
from pagesim.scheduling.request import EngineRequest, Family
from pagesim.setup.compiled import mypyc_attr
from pagesim.sim.clock import to_tick_column
from pagesim.workloads.trace import IntColumn, Trace

Kind = TypeVar("Kind", bound=EngineRequest)

NEVER: Final = (1 << 62) - 1
"""Time later than any in a simulation, in ticks."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Arrivals:
    """The columns of a trace that a scheduler may see, one Python integer at a time.

    Args:
        trace: requests in order of arrival.
        rows: trace rows to serve, ``[N]``, ascending; all others were rejected at submission.
        drop: probability that a beam is dropped at a token.
        seed: random seed of beam searches and draws.
        contents: contents of the requests, by row; None if no prefixes are looked up.
        request_of: the request that each row is a sample of, ``[N]``; None if each row is its own request.
    """

    def __init__(
        self,
        trace: Trace,
        rows: IntColumn,
        *,
        drop: float = DROP,
        seed: int = 0,
        contents: Contents | None = None,
        request_of: IntColumn | None = None,
    ) -> None:
        def column(values: IntColumn) -> array[int]:
            return array("q", values.astype(np.int64).tobytes())

        beams = trace.beam_width[rows]
        self.row = column(rows)
        self.ticks = column(to_tick_column(trace.arrival_s[rows]))
        self.prompt = column(trace.prompt_tokens[rows])
        self.output = column(trace.output_tokens[rows])
        self.samples = column(np.maximum(trace.n[rows], beams))
        self.widest = max(self.samples, default=1)  # samples of the widest request
        self.has_beams = int(beams.max(initial=1)) > 1
        self._beams = column(beams) if self.has_beams else None
        self._priority = None if trace.priority is None else column(trace.priority[rows])
        self._sample_tokens = trace.sample_tokens
        self._drop = drop
        self._seed = seed
        self._contents = contents
        self._request_of = request_of

    def __len__(self) -> int:
        return len(self.row)

    @property
    def next_send(self) -> int:
        """When the next request that is not among these yet is sent, in ticks, if none finishes before."""
        return NEVER

    def index_of(self, row: int) -> int:
        """Return the index of a request by its row in the trace."""
        return bisect_left(self.row, row)

    @overload
    def request(self, index: int) -> EngineRequest: ...

    @overload
    def request(self, index: int, kind: type[Kind]) -> Kind: ...

    def request(self, index: int, kind: type[EngineRequest] = EngineRequest) -> EngineRequest:
        """Return the request at an index; contents must be requested in order of arrival."""
        samples = self.samples[index]
        return kind(
            index,
            self.row[index],
            self.ticks[index],
            self.prompt[index],
            self.output[index],
            None if samples == 1 else self.family_of(index),
            None if self._contents is None else self.content_of(index),
        )

    def priority_of(self, index: int) -> int:
        """Return a request's priority from the trace; the scheduler defines which value comes first."""
        return 0 if self._priority is None else self._priority[index]

    def draw_seed(self, index: int) -> int:
        """Return the random seed of a request's draws, different for each request."""
        row = self.row[index]
        request, sample = row, 0
        if self._request_of is not None:
            request = int(self._request_of[row])
            sample = row - int(np.searchsorted(self._request_of, request))
        return 100_003 * (8 * request + sample) + (self._seed << 64)

    def family_of(self, index: int) -> Family:
        """Return the samples of a request that has several."""
        outputs = None if self._sample_tokens is None else self._sample_tokens[self.row[index]]
        return Family(
            self.prompt[index], outputs or [self.output[index]] * self.samples[index], self.beams_of(index)
        )

    def content_of(self, index: int) -> Content | None:
        """Return a request's content; None if no prefixes are looked up."""
        return None if self._contents is None else self._contents.of(self.row[index])

    def beams_of(self, index: int) -> BeamSearch | None:
        """Return the beam search of a request, if it has one."""
        if self._beams is None or self._beams[index] == 1:
            return None
        return BeamSearch(self._beams[index], self._drop, (self._seed << 32) + self.row[index])


NO_ARRIVALS = Arrivals(
    Trace(np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64)), np.empty(0, np.int64)
)

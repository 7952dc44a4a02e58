"""Group: the samples of one request, from its admission until it leaves; Arrivals: the requests to come."""

from __future__ import annotations

from array import array
from itertools import compress

import numpy as np

from pagesim.scheduling.beams import DROP, BeamSearch
from pagesim.scheduling.content import Content, Contents
from pagesim.sim.clock import to_tick_column
from pagesim.workloads.trace import IntColumn, Trace


class Arrivals:
    """The columns of a trace that a scheduler may see, one Python integer at a time.

    Args:
        trace: requests in order of arrival.
        rows: the rows of the trace that take part, ``[N]``; the others were turned away at the door.
        drop: a beam's chance of being dropped at a token, see `BeamSearch`.
        seed: of the beams.
        contents: of these requests, by index; None where nobody asks.
    """

    def __init__(
        self,
        trace: Trace,
        rows: IntColumn,
        *,
        drop: float = DROP,
        seed: int = 0,
        contents: Contents | None = None,
    ) -> None:
        def column(values: IntColumn) -> array[int]:
            return array("q", values.astype(np.int64).tobytes())

        trace = trace.take(rows)
        self.row = column(rows)
        self.ticks = column(to_tick_column(trace.arrival_s))
        self.prompt = column(trace.prompt_tokens)
        self.output = column(trace.output_tokens)
        self.samples = column(np.maximum(trace.n, trace.beam_width))
        self.widest = max(self.samples, default=1)  # samples of the widest request
        self._beams = column(trace.beam_width) if int(trace.beam_width.max(initial=1)) > 1 else None
        self._sample_tokens = trace.sample_tokens
        self._drop = drop
        self._seed = seed
        self._contents = contents

    def __len__(self) -> int:
        return len(self.row)

    def outputs_of(self, index: int) -> tuple[int, ...] | None:
        """Return the tokens that each sample of a request generates; None where they are alike."""
        if self._sample_tokens is None:
            return None
        tokens = self._sample_tokens[index]
        return tokens if min(tokens) < max(tokens) else None

    def content_of(self, index: int) -> Content | None:
        """Return what a request's tokens are; requests are asked about in their order."""
        return None if self._contents is None else self._contents.of(index)

    def beams_of(self, index: int) -> BeamSearch | None:
        """Return the beam search of a request, if it has one."""
        if self._beams is None or self._beams[index] == 1:
            return None
        return BeamSearch(self._beams[index], self._drop, (self._seed << 32) + self.row[index])


NOBODY = Arrivals(Trace(np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64)), np.empty(0, np.int64))


class Group:
    """A request that has been admitted at least once: all its samples live, wait and move together.

    Attributes:
        row: the request's row in the trace.
        arrival: ticks.
        prompt: tokens.
        output: tokens that the longest of its samples generates.
        outputs: tokens that each sample generates, where they differ; else None.
        length: tokens of a sample (prompt and generated) whenever the group is not running.
        sequences: the ids in memory of those samples that are not over.
        numbers: which of the request's samples they are, where they differ.
        finals: their lengths in the end.
        samples: how many they are.
        ended: the samples that were over last.
        generated: tokens of samples that are over.
        beams: the beam search that decides which of the sequences survive, if one does.
        base: while running, a sample's length minus the memory's ``steps_grown``.
        content: what its tokens are, where prompts are looked for in the cache.
        cached: tokens of its prompt that were found in the cache when it was admitted last.
        computed: while a prompt runs in chunks, the tokens of it that have run.
        last_step: while running, the value of ``steps_grown`` at which a sample's last token is generated.
        order: counts admissions, so that equal arrivals keep the order in which they joined.
    """

    __slots__ = (
        "arrival",
        "base",
        "beams",
        "cached",
        "computed",
        "content",
        "ended",
        "finals",
        "generated",
        "last_step",
        "length",
        "numbers",
        "order",
        "output",
        "outputs",
        "prompt",
        "row",
        "samples",
        "sequences",
    )

    def __init__(
        self,
        row: int,
        arrival: int,
        prompt: int,
        output: int,
        sequences: tuple[int, ...],
        outputs: tuple[int, ...] | None = None,
        beams: BeamSearch | None = None,
        content: Content | None = None,
    ) -> None:
        self.row = row
        self.arrival = arrival
        self.prompt = prompt
        self.output = output
        self.outputs = outputs
        self.sequences = sequences
        self.samples = len(sequences)
        self.numbers: tuple[int, ...] = ()
        self.ended: tuple[int, ...] = ()
        self.generated = 0
        self.beams = beams
        self.content = content
        self.length = prompt
        self.base = 0
        self.cached = 0
        self.computed = 0
        self.last_step = -1
        self.order = 0
        if outputs is None:
            self.finals: tuple[int, ...] = (prompt + output,) * self.samples
        else:
            self.numbers = tuple(range(self.samples))
            self.finals = tuple(prompt + each for each in outputs)

    @property
    def final_length(self) -> int:
        """Tokens of the longest sample once it has finished."""
        return self.prompt + self.output

    @property
    def next_final(self) -> int:
        """Tokens of the sample that is over first."""
        return self.finals[0] if self.outputs is None else min(self.finals)

    def end(self, length: int) -> tuple[int, ...]:
        """Let those samples go whose last token makes them ``length`` long; return their ids in memory."""
        if self.outputs is None:
            self.samples = 0
            return self.sequences
        over = [final == length for final in self.finals]
        gone = tuple(compress(self.sequences, over))
        rest = [not each for each in over]
        self.ended = tuple(compress(self.numbers, over))
        self.generated += len(gone) * (length - self.prompt)
        self.numbers = tuple(compress(self.numbers, rest))
        self.sequences = tuple(compress(self.sequences, rest))
        self.finals = tuple(compress(self.finals, rest))
        self.samples = len(self.sequences)
        return gone

"""Spans: which tokens of which sequence each iteration computes, as kernels need to know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pagesim.scheduling.batch import Batch
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.request import EngineRequest

Sample = tuple[int, int]
"""A sequence: its request's row in the trace and its number among that request's samples."""


class Span(NamedTuple):
    """Tokens of one sequence that an iteration computes, from ``start`` up to but excluding ``stop``.

    Attributes:
        request: the request that the sequence is a sample of.
        number: the sample's number, fixed for its lifetime.
        place: its index among the unfinished samples, by which memory knows it.
        start, stop: see above.
    """

    request: EngineRequest
    number: int
    place: int
    start: int
    stop: int

    @property
    def sample(self) -> Sample:
        """The sequence that the tokens belong to."""
        return (self.request.row, self.number)


def numbers_of(request: EngineRequest) -> Sequence[int]:
    """Return the numbers of a request's unfinished samples, in the order of their places."""
    return (0,) if request.family is None else request.family.numbers


class ComputedTokens:
    """Tracks which tokens a scheduler's iterations compute; it must see every iteration.

    Args:
        scheduler: the scheduler, before it has planned anything.

    Attributes:
        running: the sequences that ran in the last iteration.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.running: set[Sample] = set()
        self._computed: dict[Sample, int] = {}

    def spans(self, batch: Batch) -> list[Span]:
        """Return the spans that a batch computes, sequences with one new token first.

        Raises:
            RuntimeError: the sequences' stored tokens do not add up to the tokens of the batch.
        """
        scheduler, computed = self.scheduler, self._computed
        for request in batch.prompts:
            for place, number in enumerate(numbers_of(request)):
                # If memory can share, the other samples are forks: what the first computes is theirs, too.
                forked = scheduler.memory.shares and place > 0
                computed[(request.row, number)] = (
                    scheduler.stored_length(request) if forked else request.cached
                )
        decodes: list[Span] = []
        prompts: list[Span] = []
        self.running = set()
        for request in scheduler.running.values():
            stop = scheduler.stored_length(request)
            for place, number in enumerate(numbers_of(request)):
                sample = (request.row, number)
                self.running.add(sample)
                start = computed[sample]
                if stop > start:
                    computed[sample] = stop
                    (decodes if stop - start == 1 else prompts).append(
                        Span(request, number, place, start, stop)
                    )
        spans = decodes + prompts
        tokens = sum([span.stop - span.start for span in spans])
        if tokens != batch.tokens:
            raise RuntimeError(
                f"the batch computes {batch.tokens} tokens; the sequences have room for {tokens}"
            )
        return spans

"""Executors: they take an iteration's time; here as a cost model predicts it, and nothing is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Protocol

from pagesim.costs import CostModel, DecodeRun, IterationShape, ReadsSpans, SpanAhead
from pagesim.scheduling.batch import Batch
from pagesim.setup.compiled import mypyc_attr

_shape_fields = attrgetter(*IterationShape._fields)


class Executor(Protocol):
    """Carries out what a scheduler planned and says how many ticks it took."""

    def execute(self, batch: Batch) -> int:
        """Carry out one iteration; return its ticks."""

    def decode_run(self, sequences: int, context: int) -> DecodeRun | None:
        """Return the time of the decode iterations ahead, or None where each must be carried out."""


@mypyc_attr(allow_interpreted_subclasses=True)
class PredictedExecutor:
    """Asks a cost model.

    Args:
        cost: gives the length of an iteration from its shape.
        ahead: says by span what is within it in the next step, where a `ReadsSpans` model is to look at that.
    """

    def __init__(self, cost: CostModel, ahead: Callable[[], Sequence[SpanAhead]] | None = None) -> None:
        self.cost = cost
        # Asked at every decision: not through methods of one line. A batch has all that a shape has.
        self.execute: Callable[[Any], int] = cost.iteration
        self.decode_run: Callable[[int, int], DecodeRun] = cost.decode
        if ahead is not None:
            assert isinstance(cost, ReadsSpans)
            decode_reached = cost.decode_reached
            self.decode_run = lambda sequences, context: decode_reached(sequences, context, ahead())


def shape_of(batch: Batch) -> IterationShape:
    """Return what a batch computes and moves."""
    return IterationShape._make(_shape_fields(batch))

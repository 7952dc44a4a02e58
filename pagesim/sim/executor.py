"""Executors return how long an iteration takes; here a cost model predicts it, and nothing is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Protocol

from pagesim.costs import CostModel, DecodeRun, IterationShape, ReadsSpans, SpanAhead
from pagesim.scheduling.batch import Batch
from pagesim.setup.compiled import mypyc_attr

_shape_fields = attrgetter(*IterationShape._fields)


class Executor(Protocol):
    """Carries out what a scheduler planned and returns how many ticks it took."""

    def execute(self, batch: Batch) -> int:
        """Carry out one iteration; return its duration in ticks."""

    def decode_run(self, sequences: int, context: int) -> DecodeRun | None:
        """Return the times of the upcoming decode iterations, or None if each must be carried out."""


@mypyc_attr(allow_interpreted_subclasses=True)
class PredictedExecutor:
    """Predicts iteration times with a cost model.

    Args:
        cost: returns an iteration's duration from its shape.
        ahead: returns what lies within each span in the next step, for a `ReadsSpans` model that needs it.
    """

    def __init__(self, cost: CostModel, ahead: Callable[[], Sequence[SpanAhead]] | None = None) -> None:
        self.cost = cost
        # Called at every decision, so bound directly, without wrappers. A batch has all fields of a shape.
        self.execute: Callable[[Any], int] = cost.iteration
        self.decode_run: Callable[[int, int], DecodeRun] = cost.decode
        if ahead is not None:
            assert isinstance(cost, ReadsSpans)
            decode_reached = cost.decode_reached
            self.decode_run = lambda sequences, context: decode_reached(sequences, context, ahead())


def shape_of(batch: Batch) -> IterationShape:
    """Return what a batch computes and moves."""
    return IterationShape._make(_shape_fields(batch))

"""The predicted executor: a cost model says how long an iteration takes; nothing is computed."""

from __future__ import annotations

from typing import Protocol

from pagesim.costs import CostModel, DecodeRun, IterationShape
from pagesim.scheduling import Plan


class Executor(Protocol):
    """Carries out what a scheduler planned and says how many ticks it took."""

    def execute(self, plan: Plan) -> int:
        """Carry out one iteration; return its ticks."""

    def decode_run(self, sequences: int, context: int) -> DecodeRun | None:
        """Return the time of the decode iterations ahead, or None where each must be carried out."""


class PredictedExecutor:
    """Asks a cost model."""

    def __init__(self, cost: CostModel) -> None:
        self.cost = cost
        self.decode_run = cost.decode  # asked at every decision: not through a method of one line

    def execute(self, plan: Plan) -> int:
        return self.cost.iteration(shape_of(plan))


def shape_of(plan: Plan) -> IterationShape:
    """Return what a plan computes and moves."""
    return IterationShape(
        plan.batched_tokens,
        plan.tokens,
        plan.context_tokens,
        plan.decode_context,
        plan.query_key_pairs,
        len(plan.swaps_out),
        len(plan.swaps_in),
        len(plan.copies),
        plan.decoding,
        plan.decoding + len(plan.prompts) - len(plan.incomplete) + len(plan.completed),
        plan.launches,
    )

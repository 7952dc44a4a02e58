"""Cost models: how long an iteration takes, in ticks, from what it computes and moves."""

from pagesim.costs.affine import Affine
from pagesim.costs.base import (
    NOWHERE,
    UNBOUNDED,
    CostModel,
    DecodeRun,
    Itemised,
    IterationShape,
    step_shape,
)
from pagesim.costs.parse import COST_MODELS, MakeCost, Target, parse_cost
from pagesim.costs.preemption import PreemptionPrices
from pagesim.costs.profiled import Profiled
from pagesim.costs.roofline import Efficiency, Roofline

__all__ = [
    "COST_MODELS",
    "NOWHERE",
    "UNBOUNDED",
    "Affine",
    "CostModel",
    "DecodeRun",
    "Efficiency",
    "Itemised",
    "IterationShape",
    "MakeCost",
    "PreemptionPrices",
    "Profiled",
    "Roofline",
    "Target",
    "parse_cost",
    "step_shape",
]

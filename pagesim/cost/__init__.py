"""Cost models: how long an iteration takes, in ticks, from what it computes and moves."""

from pagesim.cost.affine import Affine
from pagesim.cost.base import (
    NOWHERE,
    UNBOUNDED,
    CostModel,
    DecodeRun,
    Itemised,
    IterationShape,
    step_shape,
)
from pagesim.cost.parse import COST_MODELS, MakeCost, Target, parse_cost
from pagesim.cost.preemption import PreemptionPrices
from pagesim.cost.profiled import Profiled
from pagesim.cost.roofline import Efficiency, Roofline

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

"""Cost models: how long an iteration takes, in ticks, from what it computes and moves."""

from pagesim.cost.affine import Affine
from pagesim.cost.base import CostModel, DecodeRun, IterationShape
from pagesim.cost.roofline import Roofline

__all__ = ["Affine", "CostModel", "DecodeRun", "IterationShape", "Roofline"]

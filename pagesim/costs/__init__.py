"""Cost models: the ticks of an iteration, from what it computes and moves."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pagesim.costs.affine import Affine
    from pagesim.costs.base import (
        NOWHERE,
        UNBOUNDED,
        Assuming,
        AttentionSpan,
        CostModel,
        DecodeRun,
        Itemised,
        IterationShape,
        ReadsSpans,
        SpanAhead,
        step_shape,
    )
    from pagesim.costs.engines import ENGINES, EngineTime, engine_time
    from pagesim.costs.parse import COST_MODELS, MakeCost, Target, parse_cost
    from pagesim.costs.preemption import PreemptionPrices
    from pagesim.costs.profiled import Profiled
    from pagesim.costs.roofline import Efficiency, Roofline

__all__ = [
    "COST_MODELS",
    "ENGINES",
    "NOWHERE",
    "UNBOUNDED",
    "Affine",
    "Assuming",
    "AttentionSpan",
    "CostModel",
    "DecodeRun",
    "Efficiency",
    "EngineTime",
    "Itemised",
    "IterationShape",
    "MakeCost",
    "PreemptionPrices",
    "Profiled",
    "ReadsSpans",
    "Roofline",
    "SpanAhead",
    "Target",
    "engine_time",
    "parse_cost",
    "step_shape",
]

_HOMES = {
    "COST_MODELS": "parse",
    "ENGINES": "engines",
    "Affine": "affine",
    "Efficiency": "roofline",
    "EngineTime": "engines",
    "MakeCost": "parse",
    "PreemptionPrices": "preemption",
    "Profiled": "profiled",
    "Roofline": "roofline",
    "Target": "parse",
    "engine_time": "engines",
    "parse_cost": "parse",
}
"""Module of each name; all other names are in ``base``."""


def __getattr__(name: str) -> Any:
    # The command line needs only the names of models and GPUs, so --help must not wait for the other imports.
    if name not in __all__:
        raise AttributeError(f"module 'pagesim.costs' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"pagesim.costs.{_HOMES.get(name, 'base')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)

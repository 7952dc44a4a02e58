"""Types of weights and of the cache, as the tables call them."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from pagesim.errors import PagesimError
from pagesim.models import ModelSpec
from pagesim.models.weights import weight_dtype

BF16 = "bfloat16"

WEIGHTS = {
    "bf16": BF16,
    "fp16": BF16,
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "int8": "int8_wo",
    "int4": "int4_wo",
    "nvfp4": "nvfp4",
    "mxfp4": "w4a16_mxfp4",
    "mxfp4_mxfp8": "w4a8_mxfp4_mxfp8",
}
"""Types of weights, and what the tables call them."""

CACHES = {"bf16": BF16, "fp16": BF16, "fp8": "fp8"}


class Dtypes(NamedTuple):
    """Types as the tables call them; the LM head and routers have 16 bits.

    Attributes:
        attention, recurrent, mlp, shared, experts: of the weights of these layers (see `Weights`).
        cache: of keys and values.
    """

    attention: str
    recurrent: str
    mlp: str
    shared: str
    experts: str
    cache: str


def dtypes(model: ModelSpec, kv: str = "bf16") -> Dtypes:
    """Return the types that the tables are asked for.

    Args:
        model: whose weights have types.
        kv: of the cache: one of `CACHES`.

    Raises:
        PagesimError: an unknown type.
    """
    if kv not in CACHES:
        raise PagesimError(f"kv_dtype is {kv!r}; it must be one of {', '.join(CACHES)}")
    weights = model.weights
    of_groups = (weights.attention, weights.recurrent, weights.mlp, weights.shared, weights.experts)
    attention, recurrent, mlp, shared, experts = (WEIGHTS[each.name] for each in of_groups)
    return Dtypes(attention, recurrent, mlp, shared, experts, CACHES[kv])


def in_types(model: ModelSpec, weights: str | None, experts: str | None) -> ModelSpec:
    """Return a model with weights of other types.

    Args:
        model: any; its own types stay where none is named.
        weights: of all layers, as checkpoints in it are usually released.
        experts: of experts that are not shared.

    Raises:
        PagesimError: there is no such type.
    """
    if weights is not None:
        model = model.with_weights(weights)
    if experts is not None:
        model = replace(model, weights=replace(model.weights, experts=weight_dtype(experts)))
    return model

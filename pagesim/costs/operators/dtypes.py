"""Types of weights and of the cache, as the tables call them."""

from __future__ import annotations

from typing import NamedTuple

from pagesim.models import ModelSpec
from pagesim.models.weights import WeightDtype, weight_dtype

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

_NAMES = {table: name for name, table in reversed(WEIGHTS.items())}

STANDS_IN = {"fp8_block": ("fp8", BF16), "fp8": ("fp8_block", BF16), "w4a8_mxfp4_mxfp8": ("fp8", BF16)}
"""By weight type, those whose products stand for its own where it was not timed; `BF16` for all others."""


class Dtypes(NamedTuple):
    """Types as the tables call them; the LM head and routers have 16 bits.

    Attributes:
        attention, recurrent, mlp, shared, experts: of the weights of these layers (see `Weights`).
        cache: of keys and values: ``bfloat16`` or ``fp8``.
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
        kv: of the cache: one of `KV_DTYPE_BYTES`; all but 16 bits count as fp8.
    """
    weights = model.weights
    of_groups = (weights.attention, weights.recurrent, weights.mlp, weights.shared, weights.experts)
    attention, recurrent, mlp, shared, experts = map(_name, of_groups)
    return Dtypes(attention, recurrent, mlp, shared, experts, BF16 if kv in ("bf16", "fp16") else "fp8")


def _name(dtype: WeightDtype) -> str:
    """Return what the tables call a weight type, or the most like it of those that they know."""
    if dtype.name in WEIGHTS:
        return WEIGHTS[dtype.name]
    if dtype.compute != "fp16":
        return {"fp8": "fp8", "fp4": "nvfp4"}[dtype.compute]
    return BF16 if dtype.bits > 12 else "int8_wo" if dtype.bits > 6 else "int4_wo"


def weights_of(dtype: str) -> WeightDtype:
    """Return the weight type that the tables call so."""
    return weight_dtype(_NAMES[dtype])


def in_words(dtype: str) -> str:
    """Return what pagesim calls a type of the tables."""
    return _NAMES.get(dtype, dtype)

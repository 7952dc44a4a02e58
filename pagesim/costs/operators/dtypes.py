"""Data types of weights and of the KV cache, by their names in the tables."""

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
"""Names in the tables of pagesim's weight types."""

_NAMES = {table: name for name, table in reversed(WEIGHTS.items())}

STANDS_IN = {"fp8_block": ("fp8", BF16), "fp8": ("fp8_block", BF16), "w4a8_mxfp4_mxfp8": ("fp8", BF16)}
"""Weight types whose GEMMs replace those of an untimed type, by that type; `BF16` for all others."""


class Dtypes(NamedTuple):
    """Data types by their names in the tables; the LM head and routers have 16 bits.

    Attributes:
        attention, recurrent, mlp, shared, experts: types of these layers' weights (see `Weights`).
        cache: type of keys and values, ``bfloat16`` or ``fp8``.
    """

    attention: str
    recurrent: str
    mlp: str
    shared: str
    experts: str
    cache: str


def dtypes(model: ModelSpec, kv: str = "bf16") -> Dtypes:
    """Return the data types to look up in the tables.

    Args:
        model: model whose weight types are looked up.
        kv: type of the KV cache, one of `KV_DTYPE_BYTES`; all but the 16-bit ones are treated as fp8.
    """
    weights = model.weights
    of_groups = (weights.attention, weights.recurrent, weights.mlp, weights.shared, weights.experts)
    attention, recurrent, mlp, shared, experts = map(_name, of_groups)
    return Dtypes(attention, recurrent, mlp, shared, experts, BF16 if kv in ("bf16", "fp16") else "fp8")


def _name(dtype: WeightDtype) -> str:
    """Return the tables' name of a weight type, or of the most similar one that they know."""
    if dtype.name in WEIGHTS:
        return WEIGHTS[dtype.name]
    if dtype.compute != "fp16":
        return {"fp8": "fp8", "fp4": "nvfp4"}[dtype.compute]
    return BF16 if dtype.bits > 12 else "int8_wo" if dtype.bits > 6 else "int4_wo"


def weights_of(dtype: str) -> WeightDtype:
    """Return the weight type with this name in the tables."""
    return weight_dtype(_NAMES[dtype])


def in_words(dtype: str) -> str:
    """Return pagesim's name of a type in the tables."""
    return _NAMES.get(dtype, dtype)

"""Types of weights and of the cache, as pagesim and as the tables call them."""

from __future__ import annotations

from typing import NamedTuple

from pagesim.costs.specs import ModelSpec
from pagesim.errors import PagesimError

BF16 = "bfloat16"

WEIGHTS = {
    "bf16": BF16,
    "fp16": BF16,
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "int4": "int4_wo",
    "nvfp4": "nvfp4",
    "mxfp4": "w4a16_mxfp4",
}
"""Types of weights, and what the tables call them; ``fp8_block`` has a scale for each block of 128 by 128."""

CACHES = {"bf16": BF16, "fp16": BF16, "fp8": "fp8"}

BITS = {"bfloat16": 16.0, "fp8": 8.0, "fp8_block": 8.0, "int4_wo": 4.25, "nvfp4": 4.5, "w4a16_mxfp4": 4.25}
"""Bits of a weight, its share of the scales included."""

_MXFP4_BITS = 4.25


class Dtypes(NamedTuple):
    """Types as the tables call them.

    Attributes:
        weights: of matrices but the LM head and routers, which are 16 bits.
        experts: of experts that are not shared.
        cache: of keys and values.
    """

    weights: str
    experts: str
    cache: str


def dtypes(
    model: ModelSpec, weights: str | None = None, experts: str | None = None, kv: str = "bf16"
) -> Dtypes:
    """Return the types that the tables are asked for.

    Args:
        model: tells what is not given: 16 bits, ``fp8_block`` where a weight is one byte, ``mxfp4`` where an
            expert's is 4.25 bits.
        weights: one of `WEIGHTS`.
        experts: likewise, of experts; as ``weights`` unless the model says otherwise.
        kv: one of `CACHES`.

    Raises:
        PagesimError: an unknown type.
    """
    found = weights or ("fp8_block" if model.weight_dtype_bytes == 1 else "bf16")
    of_experts = experts
    if of_experts is None and model.moe is not None and model.moe.expert_bits == _MXFP4_BITS:
        of_experts = "mxfp4"
    for name, value, known in (
        ("weight_dtype", found, WEIGHTS),
        ("expert_dtype", of_experts or found, WEIGHTS),
        ("kv_dtype", kv, CACHES),
    ):
        if value not in known:
            raise PagesimError(f"{name} is {value!r}; it must be one of {', '.join(known)}")
    # Without scales by block there is no product of weights in MXFP4: only experts are stored so.
    if found == "mxfp4":
        raise PagesimError("weight_dtype is 'mxfp4'; only experts have it: name it as expert_dtype")
    return Dtypes(WEIGHTS[found], WEIGHTS[of_experts or found], CACHES[kv])

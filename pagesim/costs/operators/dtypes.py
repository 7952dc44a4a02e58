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
"""Weight dtypes, and what the tables call them."""

CACHES = {"bf16": BF16, "fp16": BF16, "fp8": "fp8"}


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


def dtypes(model: ModelSpec, kv: str = "bf16") -> Dtypes:
    """Return the types that the tables are asked for.

    Args:
        model: with the dtypes of its weights.
        kv: one of `CACHES`.

    Raises:
        PagesimError: a type of which no table is.
    """
    weights, experts = model.weights.attention.name, model.weights.experts.name
    for name, value, known in (
        ("weight_dtype", weights, WEIGHTS),
        ("weight_dtype of experts", experts, WEIGHTS),
        ("kv_dtype", kv, CACHES),
    ):
        if value not in known:
            raise PagesimError(
                f"{name} of {model.name} is {value!r}; operators are timed in {', '.join(known)}"
            )
    # Without scales by block there is no product of weights in MXFP4: only experts are stored so.
    if weights == "mxfp4":
        raise PagesimError(
            f"weight_dtype of {model.name} is 'mxfp4'; operators are timed in it for experts only"
        )
    return Dtypes(WEIGHTS[weights], WEIGHTS[experts if model.moe else weights], CACHES[kv])

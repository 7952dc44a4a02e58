"""The dtypes of a bench by name."""

from __future__ import annotations

import torch

DTYPES = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "fp8": torch.float8_e4m3fn,
}
"""What a cache, or a matrix, holds."""

TOLERANCE = {"fp16": 5e-3, "bf16": 4e-2, "fp32": 5e-3, "fp8": 5e-2}
"""max|error| / max|reference| that still counts as right: it guards against wrong results, no more.

fp32 allows for a GPU's tf32 products."""


def query_dtype(name: str) -> torch.dtype:
    """Return what queries are in where the cache is of this dtype: the same, or fp16 beside FP8."""
    return torch.float16 if name == "fp8" else DTYPES[name]

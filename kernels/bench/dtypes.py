"""The dtypes of a bench by name."""

from __future__ import annotations

import torch

DTYPES = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "fp8": torch.float8_e4m3fn,
    "fp8_per_token_head": torch.float8_e4m3fn,
    "int8_per_token_head": torch.int8,
}
"""What a cache, or a matrix, holds; the last two are named as vLLM names them."""

TOLERANCE = {
    "fp16": 5e-3,
    "bf16": 4e-2,
    "fp32": 5e-3,
    "fp8": 5e-2,
    "fp8_per_token_head": 5e-2,
    "int8_per_token_head": 5e-2,
}
"""max|error| / max|reference| that still counts as right: it guards against wrong results, no more.

fp32 allows for a GPU's tf32 products."""


def query_dtype(name: str) -> torch.dtype:
    """Return what queries are in where the cache is of this dtype: the same, or fp16 beside bytes."""
    return torch.float16 if DTYPES[name].itemsize == 1 else DTYPES[name]


def has_token_scales(name: str) -> bool:
    """Return whether every token and head of a cache of this dtype has a scale, of four bytes."""
    return name.endswith("_per_token_head")


def vector_bytes(name: str, head_size: int) -> int:
    """Return the bytes of one head's key, or value, of a token."""
    return head_size * DTYPES[name].itemsize + 4 * has_token_scales(name)

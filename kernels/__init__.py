"""Paged attention in Triton, and the copies that go with it; each op has a reference that runs without a GPU.

Neither torch nor triton is imported before a name is used, and triton not before a kernel runs.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pagesim.kernels.api import (
        BlockPool,
        Cache,
        LatentCache,
        SharedPrefixes,
        Variant,
        cascade_decode_attention,
        cascade_plan,
        checked_bounds,
        contiguous_decode_attention,
        copy_blocks,
        decode_attention,
        decode_plan,
        gather_blocks,
        gather_decode_attention,
        gather_sequences,
        mla_decode_attention,
        mla_plan,
        mla_write,
        prefill_attention,
        reshape_and_cache,
        scatter_blocks,
        token_scaled,
    )
    from pagesim.kernels.layouts import HND, LAYOUTS, NHD, VLLM, Layout, Sizes, convert_layout
    from pagesim.kernels.planner import DecodePlan, Gpu, plan_decode

__all__ = [
    "HND",
    "LAYOUTS",
    "NHD",
    "VLLM",
    "BlockPool",
    "Cache",
    "DecodePlan",
    "Gpu",
    "LatentCache",
    "Layout",
    "SharedPrefixes",
    "Sizes",
    "Variant",
    "cascade_decode_attention",
    "cascade_plan",
    "checked_bounds",
    "contiguous_decode_attention",
    "convert_layout",
    "copy_blocks",
    "decode_attention",
    "decode_plan",
    "gather_blocks",
    "gather_decode_attention",
    "gather_sequences",
    "mla_decode_attention",
    "mla_plan",
    "mla_write",
    "plan_decode",
    "prefill_attention",
    "reshape_and_cache",
    "scatter_blocks",
    "token_scaled",
]

_LAYOUTS = {"HND", "LAYOUTS", "NHD", "VLLM", "Layout", "Sizes", "convert_layout"}
_PLANNER = {"DecodePlan", "Gpu", "plan_decode"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'pagesim.kernels' has no attribute {name!r}")
    from importlib import import_module

    home = "layouts" if name in _LAYOUTS else "planner" if name in _PLANNER else "api"
    value = getattr(import_module(f"pagesim.kernels.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
